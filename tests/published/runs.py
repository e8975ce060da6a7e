"""Run the published configurations on stand-ins, from the raw files to the report.

``python -m tests.published.runs [--engine vllm] [NAME ...]`` runs them one after another below a temporary
directory and prints the seconds and the counts of each stage. Without names it runs all six.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline import config
from pipeline.core import shipped
from pipeline.graph.extract import TRIPLETS
from pipeline.graph.facts import FACTS
from tests.llm.fake_endpoint import FakeEndpoint
from tests.published import encoders, lessons
from tests.published.data_files import write_data
from tests.published.language_models import write_language_model
from tests.published.replacements import (
    PUBLISHED,
    REPLACEMENTS,
    WITHOUT_VLLM,
    Places,
    Replacement,
    stand_in,
)

STEPS = 160  # of training; after fewer, most trajectories are malformed


@dataclass(frozen=True)
class StandIns:
    """The directories of the data files and of the models of one method."""

    data: Path
    models: Path


def write_stand_ins(root: Path, method: str) -> StandIns:
    """Write the data files and the models of a method below ``root``, unless they are there.

    Takes half a minute for each language model.
    """
    data, models = root / "data", root / "models"
    if models.is_dir():
        return StandIns(data, models)
    write_data(data)
    partial = root / "partial"
    texts = [passage.text for passage in lessons.read_passages(data)]
    if method == "prograph":
        encoders.write_bi_encoder(partial / "bge", texts, "cls")
    else:
        encoders.write_bi_encoder(partial / "e5", texts, "mean")
    if method == "tearag":
        encoders.write_reranker(partial / "reranker", texts)
        learned = policy_lessons(data, "tearag-llama3-8b", random.Random(0))
        write_language_model(partial / "llama3", "llama3", learned, steps=STEPS)
    learned = qwen_lessons(data, method)
    write_language_model(partial / "qwen2.5", "qwen2.5", learned, steps=STEPS)
    partial.rename(models)
    return StandIns(data, models)


def qwen_lessons(data: Path, method: str) -> list[lessons.Lesson]:
    """What the stand-in for all Qwen2.5 models of a method learns: policy, extraction and so on."""
    rng = random.Random(0)
    if method == "tearag":
        learned = policy_lessons(data, "tearag-qwen2.5-14b", rng)
        return (
            learned
            + lessons.extraction(data, TRIPLETS, rng)
            + lessons.selection_and_rewriting(data, rng)
        )
    if method == "hiprag":
        learned = policy_lessons(data, "hiprag-qwen2.5-3b", rng)
        return learned + lessons.extraction(data, TRIPLETS, rng) + lessons.closed_book(data)
    return policy_lessons(data, "prograph-qwen2.5-3b", rng) + lessons.extraction(data, FACTS, rng)


def policy_lessons(data: Path, name: str, rng: random.Random) -> list[lessons.Lesson]:
    """Trajectories with the prompt, in the grammar and with the kind of items of a configuration."""
    settings = config.load(name, data=str(data))
    kind = settings.retrieval.shows[0]
    return lessons.trajectories(data, settings.grammar, settings.prompt.system, kind, rng)


@dataclass(frozen=True)
class StandInRun:
    """One published configuration below ``work``, with the stand-ins in place of models and data."""

    name: str
    stand_ins: StandIns
    work: Path
    replacements: tuple[Replacement, ...] = REPLACEMENTS

    @property
    def directory(self) -> Path:
        return self.work / "runs" / self.name

    def write_configuration(self, endpoint: str) -> Path:
        """The published file as ``base``, and the replaced settings."""
        self.work.mkdir(parents=True, exist_ok=True)
        places = Places(self.work, self.stand_ins.models, endpoint)
        settings: dict[str, Any] = {"base": f"{self.name}.yaml", "name": self.name}
        for key, value in stand_in(self.name, places, self.replacements).items():
            *parents, last = (int(part) if part.isdecimal() else part for part in key.split("."))
            block = settings
            for parent in parents:
                block = block.setdefault(parent, {})
            block[last] = value
        path = self.work / "stand-in.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return path

    def steep(
        self, *arguments: str, path: Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """``steep`` with the configuration at ``path`` and the data files."""
        options = ["--config", str(path), "--data", str(self.stand_ins.data)]
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments, *options],
            cwd=self.work,
            env={
                **os.environ, "PYTHONPATH": str(shipped.ROOT), "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1",
                "OPENAI_API_KEY": "stand-in", "OMP_NUM_THREADS": "1", **variables,
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip

    def finish(self, **variables: str) -> str:
        """Run everything; returns the messages. Raises AssertionError with them when the run fails."""
        with FakeEndpoint(judge) as endpoint:
            path = self.write_configuration(endpoint.url)
            done = self.steep("run", path=path, **variables)
        assert done.returncode == 0, done.stdout + _last_log(self.directory)
        return done.stdout

    def manifests(self) -> dict[str, dict[str, Any]]:
        """The manifests of the finished stages, by stage and round."""
        found = {}
        for path in (self.directory / "store").glob("*/*/manifest.json"):
            manifest = json.loads(path.read_text())
            found[f"{path.parent.parent.name}/{path.parent.name}"] = manifest
        return found

    def counts(self, stage: str) -> dict[str, int]:
        """The row counts of the only output of a stage."""
        (manifest,) = (
            manifest for key, manifest in self.manifests().items() if key.startswith(f"{stage}/")
        )
        counts: dict[str, int] = manifest["counts"]
        return counts


def judge(text: str, earlier: int) -> str:
    """A verdict that depends on the length of the case."""
    return f"<answer>{len(text) % 2 == 0}</answer>"


def _last_log(directory: Path) -> str:
    logs = sorted(directory.rglob("*.log"), key=lambda path: path.stat().st_mtime)
    return "" if not logs else f"\n{logs[-1]}:\n{logs[-1].read_text()[-4000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--work", type=Path, help="keep everything below this directory")
    parser.add_argument("names", nargs="*", metavar="NAME", default=PUBLISHED)
    arguments = parser.parse_args()
    root = arguments.work or Path(tempfile.mkdtemp(prefix="stand-ins-"))
    rows = REPLACEMENTS if arguments.engine == "vllm" else (*REPLACEMENTS, WITHOUT_VLLM)
    for name in arguments.names:
        start = time.monotonic()
        method = name.partition("-")[0]
        stand_ins = write_stand_ins(root / method, method)
        run = StandInRun(name, stand_ins, root / name, rows)
        print(run.finish(VLLM_ENABLE_V1_MULTIPROCESSING="1"), flush=True)
        print(f"{name}: whole in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
