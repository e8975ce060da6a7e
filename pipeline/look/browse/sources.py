"""The outputs of a run that the browser reads.

Input: the stage store of a run, and the outputs that the configuration names today. Output: the
directories of every round and of every evaluated policy. An output that the configuration no longer
names is used when no other exists, and listed as stale. Trajectories are those that the pairs of
their round were made from (`newest_outputs`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from pipeline.config.policy import Pairs
from pipeline.core.errors import StoreError
from pipeline.engine.store import Store, manifest_of, newest_outputs
from pipeline.evaluation.policy_names import policy_title, round_title
from pipeline.pairs.select import PAPER

TRAJECTORIES = "trajectories.parquet"
PAIRS = "pairs.parquet"
FUNNEL = "funnel.parquet"
VERDICTS, CALLS = "verdicts.parquet", "calls.parquet"


@dataclass(frozen=True)
class Group:
    """Trajectories that one policy sampled, and the outputs made from them.

    ``key`` names the group in addresses: ``round-2`` for the trajectories of a round, ``policy-1``
    for the trajectories of an evaluated policy.
    """

    key: str
    trajectories: Path | None
    pairs: Path | None = None
    funnel: Path | None = None
    judged: Path | None = None
    questions: tuple[Path, ...] = ()
    thresholds: Pairs = PAPER  # of the pairing
    unexplained: str = ""  # why the thresholds are unknown
    policy: str = ""  # the name of an evaluated policy in results

    @property
    def number(self) -> int:
        """The number of the round or of the policy."""
        return int(self.key.rpartition("-")[2])

    @property
    def title(self) -> str:
        """Display name: "Round 2, samples of policy 1", or the title of the policy."""
        return policy_title(self.policy) if self.policy else round_title(self.number)

    def files(self) -> Iterator[Path]:
        """The files that the side table is built from."""
        judged = None if self.judged is None else self.judged / VERDICTS
        for path in (self.trajectories, self.pairs, self.funnel, judged, *self.questions):
            if path is not None:
                yield path


@dataclass(frozen=True)
class RunSources:
    """The outputs of one run; ``stale`` has a sentence for each output of earlier settings."""

    name: str
    groups: tuple[Group, ...]
    knowledge: Mapping[str, Path | None] = field(default_factory=dict)  # by stage
    stale: tuple[str, ...] = ()

    def group(self, key: str) -> Group | None:
        """The group called ``key``, or None."""
        return next((group for group in self.groups if group.key == key), None)

    @property
    def fingerprint(self) -> str:
        """A hash of names, sizes and times of all files that the side table is built from."""
        facts = []
        for group in self.groups:
            for path in group.files():
                state = path.stat()
                facts.append([group.key, str(path), state.st_size, state.st_mtime_ns])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def find_sources(name: str, root: Path, current: Sequence[Path] | None = None) -> RunSources:
    """The outputs below ``root``, the directory ``store`` of a run.

    ``current`` has the outputs that the configuration names today, in running order; None if they
    are unknown. Raises StoreError when the store has neither trajectories nor pairs.
    """
    found = _Found(root, current)
    groups = [*_rounds(found), *_policies(found)]
    if not groups:
        raise StoreError(
            f"{root} has no trajectories; run with the same options: steep run pair, or see --demo"
        )
    return RunSources(
        name,
        tuple(groups),
        {stage: found.of(stage) for stage in ("corpus", "graph", "hypergraph")},
        tuple(found.stale),
    )


class _Found:
    """Looks up outputs, and collects the sentences about stale ones."""

    def __init__(self, root: Path, current: Sequence[Path] | None) -> None:
        self.root, self.current = root, current
        paired, scored = (
            [path for path, _ in Store(root).newest(stage)] for stage in ("pair", "score")
        )
        paired.sort(key=lambda path: path not in (current or ()))  # those of today first
        self.outputs = newest_outputs(root, [*paired, *reversed(current or ()), *scored])
        self.stale: dict[str, None] = {}

    def numbers(self, *stages: str) -> list[int]:
        """The numbers of all rounds or policies of which a stage has an output."""
        labels = (label.rpartition("-") for label in self.outputs)
        return sorted({int(number) for stage, _, number in labels if stage in stages})

    def of(self, stage: str, number: int | None = None) -> Path | None:
        """A stage's output; one that the configuration does not name today is stale."""
        label = stage if number is None else f"{stage}-{number}"
        directory = self.outputs.get(label)
        if directory is not None and self.current is not None and directory not in self.current:
            self.stale[f"{label} was made with other settings or inputs ({directory.name})"] = None
        return directory


def _rounds(found: _Found) -> Iterator[Group]:
    for number in found.numbers("pair", "score", "sample"):
        pair, score = found.of("pair", number), found.of("score", number)
        sample, judged = found.of("sample", number), found.of("judge", number)
        asked = found.of("questions-sampling", number) or found.of("questions-sampling")
        thresholds, unexplained = _thresholds(pair, number)
        yield Group(
            f"round-{number}",
            trajectories=_file(score, TRAJECTORIES) or _file(sample, TRAJECTORIES),
            pairs=_file(pair, PAIRS),
            funnel=_file(pair, FUNNEL),
            judged=judged,
            questions=_questions(asked),
            thresholds=thresholds,
            unexplained=unexplained,
        )


def _thresholds(pair: Path | None, number: int) -> tuple[Pairs, str]:
    """The block ``pairs`` of the settings of a round, and a sentence if it does not fit `Pairs`."""
    manifest = None if pair is None else manifest_of(pair)
    block = {} if manifest is None else manifest["key"]["settings"].get("pairs", {})
    try:
        return Pairs.model_validate(block), ""
    except ValidationError as error:
        names = [".".join(map(str, ("pairs", *fault["loc"]))) for fault in error.errors()]
        return PAPER, (
            f"The reasons are unknown: round {number} was paired with settings that this version "
            f"of steep does not have ({', '.join(names)}); pair it again: steep run pair --round "
            f"{number}."
        )


def _policies(found: _Found) -> Iterator[Group]:
    for number in found.numbers("evaluate-policy"):
        directory = found.of("evaluate-policy", number)
        yield Group(
            f"policy-{number}",
            trajectories=_file(directory, TRAJECTORIES),
            judged=found.of("judge-policy", number),
            questions=_questions(found.of("questions-test"), found.of("questions-validation")),
            policy=f"round-{number}" if number else _first_policy(found, directory),
        )


def _first_policy(found: _Found, evaluation: Path | None) -> str:
    """The name of policy 0 in results: "sft", or without a cold start "start" or "base"."""
    manifest = None if evaluation is None else manifest_of(evaluation)
    fingerprint = "" if manifest is None else manifest["key"]["inputs"].get("policy", "")
    given = found.root / "start" / fingerprint
    if not fingerprint or not given.is_dir():
        return "sft"
    return "start" if (given / "adapter").is_dir() else "base"


def _questions(*directories: Path | None) -> tuple[Path, ...]:
    """The question files in the directories."""
    files = (_file(directory, "questions.parquet") for directory in directories)
    return tuple(path for path in files if path is not None)


def _file(directory: Path | None, name: str) -> Path | None:
    """The file in the directory, if both exist."""
    path = None if directory is None else directory / name
    return path if path is not None and path.is_file() else None
