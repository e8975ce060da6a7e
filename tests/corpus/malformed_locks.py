"""Generated ``data.lock.json`` files, each of which `fetch` must read or refuse in one sentence."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.corpus.fetch import LOCK, fetch
from pipeline.corpus.official import Download, OfficialFile

NAME, CONTENT = "nq/test.jsonl", b'{"question": "a"}\n'
SHA256 = hashlib.sha256(CONTENT).hexdigest()
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", SHA256, SHA256.upper(), [], [SHA256], {}, {"sha256": None},
    {"sha256": 5}, {"sha256": [SHA256]}, {"sha256": {}}, {"sha256": ""}, {"sha256": SHA256},
    {"sha256": SHA256, "bytes": "x"}, {"bytes": 1}, [[NAME, SHA256]], "\ud800",
)  # fmt: skip
PIECES = (
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"]",
    b'"',
    b",",
    b"NaN",
    b"9" * 5000,
    b"[" * 5000,
    b"\xef\xbb\xbf",
    b"",
)


def locks(seed: int, count: int) -> Iterator[bytes]:
    """``count`` files, the same for the same seed."""
    rng = random.Random(f"locks:{seed}")
    for _ in range(count):
        value = rng.choice(VALUES)
        if rng.random() < 0.7:
            value = {rng.choice([NAME, "other", "", "é"]): value}
        content = json.dumps(value).encode()
        if rng.random() < 0.4:
            at = rng.randrange(len(content) + 1)
            content = content[:at] + rng.choice(PIECES) + content[at + rng.randrange(2) :]
        yield content


def problem_of(content: bytes, root: Path) -> str | None:
    """What is wrong with the outcome for a lock beside a file that is there; nothing is downloaded."""
    (root / NAME).parent.mkdir(parents=True, exist_ok=True)
    (root / NAME).write_bytes(CONTENT)
    (root / LOCK).write_bytes(content)
    file = OfficialFile(NAME, "nq", Download(NAME, "http://[", "page", None, None), 1, "CC0")
    try:
        done, faults = fetch([file], root, lambda _: None)
    except InputError as error:
        message = str(error)
    except Exception as error:  # noqa: BLE001 - the crash is what is looked for
        return f"{content[:60]!r}: {type(error).__name__}: {error}"
    else:
        if done:
            recorded = json.loads((root / LOCK).read_bytes())[NAME]["sha256"]
            return None if recorded == SHA256 else f"{content[:60]!r}: {recorded} is recorded"
        message = " ".join(faults)
    if (root / LOCK).read_bytes() != content:
        return f"{content[:60]!r}: the lock was changed although it was refused"
    good = LOCK in message and message.isprintable() and len(message) < 1000
    return None if good else f"{content[:60]!r}: {message}"
