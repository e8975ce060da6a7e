"""Stage ``score``: checkpoints, shards, and trajectories with a failed retrieval."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Step, Trajectory
from pipeline.core.similarity import Similarity, lexical
from pipeline.core.verdicts import Verdict
from pipeline.engine.context import StageContext
from pipeline.engine.files.checkpoints import write_checkpoint
from pipeline.methods.hiprag.method import decision_scorer
from pipeline.methods.hiprag.reward import PAPER as EQ_1
from pipeline.methods.hiprag.reward import HiPragRewards
from pipeline.methods.tearag.method import knowledge_scorer
from pipeline.methods.tearag.reward import TeaRagRewards
from tasks.score import score_file, with_rewards
from tests.smallest import small_config, small_trajectory


def _sampled(path: Path, count: int = 7) -> Path:
    trajectories = [
        small_trajectory(
            trajectory_id=f"t{number}",
            dataset="nq" if number % 2 else "musique",
            hop="multi" if number else "unknown",
            evidence=[f"fact {number}"] if number else [],
            output=str(number),
            steps=[Step(["x"], f"x fact {number}", [], "s")],
            answer="x",
            format_ok=True,
            stop="retrieval_error" if number == 3 else "answer",
        )
        for number in range(count)
    ]
    write_parquet(path, trajectories, Trajectory)
    return path


class DyingSimilarity:
    """Works ``lives`` times."""

    def __init__(self, lives: int) -> None:
        self.lives = lives

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        if self.lives == 0:
            raise KeyboardInterrupt
        self.lives -= 1
        return lexical(pairs)


def _run(tmp_path: Path, similarity: Similarity, name: str) -> Path:
    output, source = tmp_path / name, tmp_path / "sampled" / "trajectories.parquet"
    output.mkdir(exist_ok=True)
    if not source.exists():
        source.parent.mkdir()
        _sampled(source)
    inputs, checkpoints = {"sample": source.parent}, tmp_path / "checkpoints"
    context = StageContext(small_config(), "score", output, checkpoints, inputs)
    score_file(context, knowledge_scorer(similarity), TeaRagRewards, 2)
    return output


def test_a_killed_run_continues_from_its_checkpoints_with_the_same_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, DyingSimilarity(2), "killed")
    resumed = _run(tmp_path, DyingSimilarity(2), "resumed")  # 4 batches: 2 were done
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    whole = _run(tmp_path, lexical, "whole")
    assert _bytes(resumed) == _bytes(whole)
    assert (resumed / "statistics.json").read_text() == (whole / "statistics.json").read_text()
    unmeasured = "1 of 7 trajectories answer questions with neither hops nor evidence"
    assert capsys.readouterr().out.count(unmeasured) == 2


def _bytes(output: Path) -> bytes:
    return (output / "trajectories.parquet").read_bytes()


def test_a_damaged_or_foreign_checkpoint_is_scored_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = _run(tmp_path, lexical, "first")
    parts = sorted((tmp_path / "checkpoints").iterdir())
    parts[0].write_bytes(parts[0].read_bytes()[:-9])
    of_other_rows = write_checkpoint(
        tmp_path / "checkpoints", "000000002-000000004", [], Trajectory
    )
    parts[1].unlink()
    assert _bytes(_run(tmp_path, DyingSimilarity(2), "again")) == _bytes(first)
    assert f"{parts[0]} is damaged" in caplog.text
    assert f"{of_other_rows} does not hold the trajectories of its rows" in caplog.text


def test_a_reward_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    [trajectory] = read_records(_sampled(tmp_path / "one.parquet", count=1), Trajectory)
    with pytest.raises(InputError, match=r"trajectory t0: the rewards .* not finite"):
        with_rewards([trajectory], lambda trajectories, verdicts: [{"total": float("nan")}])


def test_hiprags_reward_reads_the_verdicts_of_each_step(tmp_path: Path) -> None:
    steps = [Step(search="q", conclusion="c"), Step(conclusion="c")]
    [template] = read_records(_sampled(tmp_path / "one.parquet", count=1), Trajectory)
    trajectories = [
        dataclasses.replace(template, trajectory_id=name, steps=steps, grammar="hiprag")
        for name in "ab"
    ]
    trajectories[1].stop = "retrieval_error"
    source = tmp_path / "trajectories.parquet"
    write_parquet(source, trajectories, Trajectory)

    def scored(verdicts: list[Verdict], name: str) -> list[Trajectory]:
        output = tmp_path / name
        output.mkdir()
        write_parquet(output / "verdicts.parquet", verdicts, Verdict)
        inputs = {"sample": source.parent, "judge": output}
        context = StageContext(small_config(), "score", output, output, inputs)
        score_file(context, decision_scorer(EQ_1), HiPragRewards, 1)
        return read_records(output / "trajectories.parquet", Trajectory)

    over = Verdict("a", 0, "over", "yes", "m", "k")
    other = Verdict("of another trajectory", 0, "over", "no", "m", "k")
    under = Verdict("a", 1, "under", "unknown", "m", "k")
    first, broken = scored([other, under, over], "whole")
    assert first.rewards is not None
    assert (first.rewards["n"], first.rewards["n_corr"]) == (1, 0)
    assert [step["verdict"] for step in first.rewards["steps"]] == ["yes", "unknown"]
    assert broken.rewards is None
    with pytest.raises(InputError, match="a has 2 steps and 1 verdicts"):
        scored([over], "half")
    with pytest.raises(InputError, match="a has 2 steps and 2 verdicts"):
        scored([over, over], "twice")
    with pytest.raises(InputError, match="a has 2 steps and 0 verdicts"):
        scored([other], "none")
