"""Generated malformed manifests in the store of a run, for the commands that read manifests.

``check(case, run)`` puts a case's text in the place of a manifest and runs one command in this process. It
returns what is wrong with the outcome, or None: a traceback, more than one sentence, or a value of a wrong
type that ``steep verify`` does not name.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.malformed_inputs import steep

_OBJECTS = ("key", "key.settings", "key.files", "key.inputs", "counts", "files", "contents", "made_from",
            "notes", "execution", "work", "versions")  # fmt: skip
_TEXTS = ("fingerprint", "key.stage", "key.files.model", "key.inputs.corpus", "contents.corpus", "started",
          "made_from.corpus", "device", "versions.torch", "git", "files.rows.txt.sha256", "content_key")  # fmt: skip
_NUMBERS = ("counts.rows", "wall_seconds", "launch_seconds", "peak_memory_mb", "work.steps")
_WHOLE = ("key.version", "key.round", "seed", "files.rows.txt.size")
_WRONG: dict[tuple[str, ...], list[Any]] = {
    _OBJECTS: [5, 1.5, "x", True, [], [["a", "b"]]],
    _TEXTS: [5, 1.5, True, ["x"], {"a": 1}],
    _NUMBERS: ["5", True, [1.0], {"a": 1}, None],
    _WHOLE: ["5", 1.5, True, [1], {"a": 1}],
    ("resumed",): [5, "true", [True], None],
}
_STRANGE: list[Any] = [
    None, "", "\0", "\ud800", "\x1b[2J", "\u202e", "x" * 100_000, "a\nb", "../..", "/etc/passwd", 0, -1, 10**9,
    2**63 - 1, -(2**63), 1e308, 5e-324, -0.0, {}, [[]], {"": None}, {"\ud800": "\ud800"}, {"a": {"b": [None]}},
]  # fmt: skip
COMMANDS = (
    ("status",), ("status", "--json"), ("verify",), ("gc",), ("plan",), ("view",), ("check",),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A manifest's text for the stage ``label``, and a command.

    ``wrong`` is the name of a value with another type than readers expect; None where the text may be right.
    """

    label: str
    text: bytes
    command: tuple[str, ...]
    name: str
    wrong: str | None


def whole(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with a value for every name that `cases` changes, as a stage's process writes it."""
    return {
        **manifest,
        "key": {**manifest["key"], "files": {"model": "0" * 16}, "inputs": {"corpus": "0" * 16}},
        "files": {**manifest["files"], "rows.txt": {"size": 1, "sha256": "0" * 64}},
        "content_key": "0" * 32, "contents": {"corpus": "0" * 32}, "made_from": {"corpus": "0" * 16},
        "notes": {"choice": 1}, "execution": {"workers": 2}, "work": {"steps": 3}, "resumed": False,
        "seed": 0, "started": "2026-01-01T00:00:00Z", "wall_seconds": 1.5, "launch_seconds": 0.1,
        "peak_memory_mb": 100, "device": "cpu", "versions": {"torch": "0"}, "git": "abc",
    }  # fmt: skip


def cases(seed: int, count: int, manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[Case]:
    """``count`` cases, equal for equal seeds; ``manifests`` are those of a run by stage."""
    chance = random.Random(seed)
    for _ in range(count):
        label = chance.choice(sorted(manifests))
        value, wrong = whole(manifests[label]), None
        names = chance.choice(list(_WRONG))
        name = chance.choice(names)
        kind = chance.choice(("wrong", "wrong", "strange", "absent", "bytes"))
        holder, key = _holder(value, name)
        if kind == "wrong":
            holder[key] = chance.choice(_WRONG[names])
            wrong = name
        elif kind == "strange":
            holder[key] = copy.deepcopy(chance.choice(_STRANGE))
        elif kind == "absent":
            del holder[key]
        text = json.dumps(value).encode()
        if kind == "bytes":
            at = chance.randrange(len(text))
            text = chance.choice(
                (text[:at], text[:at] + b"\xff" + text[at + 1 :], b"[" * 5000, b"")
            )
        command = ("verify",) if wrong and chance.random() < 0.3 else chance.choice(COMMANDS)
        yield Case(label, text, command, f"{label}: {kind} {name}", wrong)


def check(case: Case, file: Path, options: list[str]) -> str | None:
    """Run a case on the manifest ``file``, which is restored; what is wrong with the outcome, or None."""
    before = file.read_bytes()
    file.write_bytes(case.text)
    try:
        status, printed, complaint = steep([*case.command, *options])
    finally:
        file.write_bytes(before)
    if "Traceback" in complaint or status not in (0, 1, 2):
        return f"status {status}: {complaint[-600:]}"
    if status == 2 and (not complaint.startswith("error: ") or complaint.count("\n") != 1):
        return f"not one sentence: {complaint[:300]!r}"
    verified = case.command == ("verify",) and case.wrong is not None
    if verified and (status == 0 or "not a manifest" not in printed + complaint):
        return f"{case.wrong} was not named: {status} {printed[:300]}"
    return None


def _holder(value: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """The object that holds a dotted name, and its last part; a file's name may have a dot."""
    if name.startswith("files.rows.txt."):
        return value["files"]["rows.txt"], name.rpartition(".")[2]
    *parents, key = name.split(".")
    for parent in parents:
        value = value[parent]
    return value, key
