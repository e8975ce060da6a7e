"""Runs of the published configurations on stand-ins for their data files and models."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline import config
from pipeline.core import shipped
from pipeline.knowledge.graph.extract import TRIPLETS
from pipeline.knowledge.graph.facts import FACTS
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.steps import tool_format
from tests.llm.fake_endpoint import FakeEndpoint
from tests.published import lessons
from tests.published.data_files import write_data
from tests.published.language_models import (
    TOKENIZERS,
    Family,
    encode,
    encode_conversation,
    write_language_model,
    write_untied,
)
from tests.published.replacements import HELPER, JUDGE, Places, models_of, stand_in
from tests.retrieval.small_encoders import write_bi_encoder, write_cross_encoder

STEPS = 160  # of training; after fewer, facts are forgotten and most trajectories are malformed
# The configuration from which a language model learns the policy's prompt and grammar.
POLICIES = {
    ("tearag", "llama3"): "tearag-llama3-8b",
    ("tearag", "qwen2.5-tied"): "tearag-qwen2.5-14b",
    ("hiprag", "qwen2.5-tied"): "hiprag-qwen2.5-3b",
    ("prograph", "qwen2.5-tied"): "prograph-qwen2.5-3b",
    ("search-r1", "qwen2.5-tied"): "baseline-search-r1-qwen2.5-3b",
}
TOOLS = "tearag-qwen3-4b-tools"
PLACES = Places(Path("/work"), Path("/models"), "http://localhost:1/v1")
ENGINE_PROCESSES = ("prograph-qwen2.5-3b",)  # runs with vLLM's multi-process engine


def method_of(name: str) -> str:
    """The method of a configuration, whose stand-ins it shares; of three baselines Search-R1."""
    method = name.removeprefix("baseline-").partition("-")[0]
    return method if method in ("tearag", "hiprag", "prograph") else "search-r1"


@dataclass(frozen=True)
class StandIns:
    """The directories of the data files and of the models of one method."""

    data: Path
    models: Path


def write_stand_ins(root: Path, name: str) -> StandIns:
    """Write the data files and the models of a configuration below ``root``, as far as they are not there.

    Takes about 15 seconds of processor time for each language model. Configurations of one method can share
    ``root``, and with it data and models.
    """
    method = method_of(name)
    data, models = root / "data", root / "models"
    if not data.is_dir():
        write_data(root / "partial-data").rename(data)
    for model in sorted(set(models_of(name).values())):
        _write_model(models, model, data, method)
    return StandIns(data, models)


def _write_model(models: Path, name: str, data: Path, method: str) -> None:
    """Write one model, and the one that it is made from, unless they are there."""
    if (models / name).is_dir():
        return
    partial = models.with_name(f"partial-{name}")
    if name in ("e5", "bge"):
        write_bi_encoder(partial)
    elif name == "reranker":
        write_cross_encoder(partial, max_position_embeddings=514)
    elif name == "qwen2.5":
        _write_model(models, "qwen2.5-tied", data, method)
        write_untied(models / "qwen2.5-tied", partial)
    else:
        family: Family = next(one for one in TOKENIZERS if name.startswith(one))
        source = Path(os.environ["STEEP_DATA"]) / "tokenizers" / TOKENIZERS[family]
        if name == "qwen3":
            settings = config.load(TOOLS, data=str(data))
            tokenizer: Any = model_tokenizer(source, str(settings.model.chat_template))
            chat = ChatTemplate(tokenizer, [tool_format(settings.grammar).tool], thinking=False)
            kind = settings.retrieval.shows[0]
            made = lessons.conversations(data, method, settings.prompt, kind, random.Random(0))
            encoded = [encode_conversation(chat, messages) for messages in made]
        else:
            tokenizer = model_tokenizer(source)
            encoded = [encode(tokenizer, lesson) for lesson in learned(data, method, name)]
        write_language_model(partial, family, tokenizer, encoded, steps=STEPS)
    models.mkdir(exist_ok=True)
    partial.rename(models / name)


def learned(data: Path, method: str, model: str) -> list[lessons.Lesson]:
    """What the stand-in for a language model learns: the policy's grammar, extraction and so on."""
    rng = random.Random(0)
    if model == JUDGE:
        return lessons.judging(data, rng)
    if model == HELPER:
        return lessons.selection_and_rewriting(data, rng)
    policy = policy_lessons(data, POLICIES[method, model], rng)
    if model == "llama3":
        return policy
    if method == "prograph":
        return policy + lessons.extraction(data, FACTS, rng)
    known = lessons.closed_book(data) if method == "hiprag" else []
    return policy + lessons.extraction(data, TRIPLETS, rng) + known


def policy_lessons(data: Path, name: str, rng: random.Random) -> list[lessons.Lesson]:
    """Trajectories with the prompt, in the grammar and with the kind of items of a configuration."""
    settings = config.load(name, data=str(data))
    kind = settings.retrieval.shows[0]
    return lessons.trajectories(data, settings.grammar, settings.prompt, kind, rng)


@dataclass(frozen=True)
class StandInRun:
    """One published configuration below ``work``, with the stand-ins in place of models and data."""

    name: str
    stand_ins: StandIns
    work: Path

    @property
    def directory(self) -> Path:
        return self.work / "runs" / self.name

    def write_configuration(self, endpoint: str) -> Path:
        """The published file as ``base``, and the replaced settings."""
        self.work.mkdir(parents=True, exist_ok=True)
        places = Places(self.work, self.stand_ins.models, endpoint)
        settings: dict[str, Any] = {"base": f"{self.name}.yaml", "name": self.name}
        for key, value in stand_in(self.name, places).items():
            *parents, last = (int(part) if part.isdecimal() else part for part in key.split("."))
            block = settings
            for parent in parents:
                block = block.setdefault(parent, {})
            block[last] = value
        path = self.work / f"stand-in-{self.name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return path

    def steep(self, *arguments: str, path: Path, **variables: str) -> str:
        """Run ``steep`` with the configuration at ``path`` and the data files; returns its messages.

        Raises AssertionError with them, and with the end of the last log, when it fails.
        """
        options = ["--config", str(path), "--data", str(self.stand_ins.data)]
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments, *options],
            cwd=self.work,
            env={
                **os.environ, "PYTHONPATH": str(shipped.ROOT), "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1",
                "OPENAI_API_KEY": "stand-in", "OMP_NUM_THREADS": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(self.name in ENGINE_PROCESSES)), **variables,
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + _last_log(self.directory)
        return done.stdout

    def finish(self, *options: str, **variables: str) -> str:
        """Check and run everything; returns the messages of ``steep check`` and ``steep run``.

        ``options`` are those of both commands, ``variables`` are added to their environment.
        """
        with FakeEndpoint(judge) as endpoint:
            path = self.write_configuration(endpoint.url)
            plan = self.steep("check", *options, path=path, **variables)
            return plan + self.steep("run", *options, path=path, **variables)

    def output(self, stage: str, name: str) -> Path:
        """A file of the newest output of a stage."""
        paths = (self.directory / "store" / stage).glob(f"*/{name}")
        return max(paths, key=lambda path: path.stat().st_mtime)

    def counts(self, stage: str) -> dict[str, int]:
        """The row counts of the newest output of a stage."""
        counts: dict[str, int] = json.loads(self.output(stage, "manifest.json").read_text())[
            "counts"
        ]
        return counts


def judge(text: str, earlier: int) -> str:
    """A verdict that depends on the length of the case."""
    return f"<answer>{len(text) % 2 == 0}</answer>"


def _last_log(directory: Path) -> str:
    logs = sorted(directory.rglob("*.log"), key=lambda path: path.stat().st_mtime)
    return "" if not logs else f"\n{logs[-1]}:\n{logs[-1].read_text()[-4000:]}"
