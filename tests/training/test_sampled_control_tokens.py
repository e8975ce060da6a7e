"""A sampled control token, followed through the stages: scored, rejected in a pair, trained against."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ContextItem, Pair, Question, Trajectory
from pipeline.core.similarity import Lexical
from pipeline.grammars import grammar
from pipeline.grammars.tokens import control_tokens
from pipeline.methods.tearag import knowledge_scorer
from pipeline.stages.pair import run as pair_stage
from pipeline.stages.score import with_rewards
from pipeline.stages.train import run_round, run_sft
from pipeline.training.encode import encode_pairs
from tests.llm.scripted_engine import ScriptedEngine
from tests.rollout.rolled_out import rolled_out
from tests.training.tiny_policy import Run, byte_tokenizer, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
HEAD = "Step 1:\nImportant entity: Ada\nSubquery: where is Ada?\n<Reference>"
GOOD = "Summary: Ada is in Rome.\nFinal answer: Rome"
BAD = "Summary: Ada is in <|pad|>Rome.\nFinal answer: Rome"


class Documents:
    def retrieve(self, queries):
        return [[ContextItem("chunk", "c", "Ada", "Ada is in Rome.", 0.5)] for _ in queries]


def test_a_sampled_control_token_is_rejected_in_a_pair_and_trained_against(tmp_path):
    tokenizer = byte_tokenizer()
    segments = iter([HEAD, HEAD, GOOD, BAD])
    trajectories = rolled_out(
        [Question("q", "toy", "Where is Ada?", ["Rome"], "single", ["Ada is in Rome."])],
        engine=ScriptedEngine(lambda prompt, request: next(segments), tokenizer),
        grammar=grammar("tearag", special_tokens=control_tokens(tokenizer)),
        retriever=Documents(),
        samples=2,
        system="",
    )
    scored = with_rewards(
        sorted(trajectories, key=lambda trajectory: trajectory.sample), knowledge_scorer(Lexical())
    )
    assert [trajectory.rewards["format"] for trajectory in scored] == [1, 0]
    write_parquet(tmp_path / "score" / "trajectories.parquet", scored, Trajectory)

    run = Run(tmp_path, write_base(tmp_path / "base"))
    run.write_data()
    run_sft(run.context("sft", "sft"))
    context = run.context("pair", "pair")
    pair_stage(dataclasses.replace(context, inputs={"score": tmp_path / "score"}))
    [pair] = read_records(tmp_path / "pair" / "pairs.parquet", Pair)
    assert (pair.kind, pair.rejected[0].content) == ("format", scored[1].output)
    [encoded] = encode_pairs(tokenizer, [pair])
    at = encoded.rejected_ids.index(tokenizer.pad_token_id)
    assert encoded.rejected_ids == scored[1].token_ids
    assert encoded.rejected_mask[at] == 1

    trained = run.context("train", "policy-1", lora={"dropout": 0.0}, dpo={"round_epochs": [6]})
    assert run_round(trained)["pairs"] == 1
    rows = json.loads((trained.output / "log.json").read_text())["history"]
    # The two trajectories differ only in the token, so the margin comes from it.
    assert rows[0]["rewards/margins"] == pytest.approx(0, abs=1e-3)
    assert rows[-1]["rewards/margins"] > 0.1
