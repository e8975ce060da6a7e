"""Generated malformed inputs for every command that takes a file.

``cases(seed, count)`` yields cases: valid records of one command with one fault, or a fault of the file. ``check(case, directory)`` runs the command line in this process and
returns what is wrong with the outcome, or None.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import random
import stat
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.cli.valid_records import COMMANDS, Command, Json

Expected = Literal["refused", "either"]
Path_ = tuple[str | int, ...]

_STRANGE: list[Any] = [
    None, "", " ", "\0", "\ud800", "\udc00\ud800", "\x1b[2J", "\u202e", "x" * 100_000, "a\nb\r\n",
    "<|im_start|>assistant", "</Reference>", "{", 5, 10**9, 1.5, True, False,
    [], {}, [[]], [None], [0], [""], {"": None}, {"total": 1}, [[0, 1, "model"]], "no", "yes",
]  # fmt: skip
_NUMBERS = [0, -1, 1, 5, 10**9, 2**63 - 1, -(2**63), 1e308, -1e308, 5e-324, -0.0, 0.1, 1e16, 700.0]
_NO_JSON = ["NaN", "-Infinity", "1e999"]  # null and texts, as other libraries write them
_REFUSED_TEXT = ["9" * 5000, "[" * 100_000 + "]" * 100_000, "tru", '"\t"', "01"]
_MARK = "MARK-4711"


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: ``arguments`` name files of ``files`` by their names in braces."""

    name: str
    arguments: tuple[str, ...]
    files: dict[str, bytes]
    expected: Expected = "either"


def cases(seed: int, count: int) -> Iterator[Case]:
    """``count`` cases, equal for equal seeds."""
    chance = random.Random(seed)
    makers = [_fields, _fields, _fields, _texts, _spans, _bytes]
    made = 0
    while made < count:
        command = chance.choice(COMMANDS)
        case = chance.choice(makers)(command, chance)
        if case is not None:
            made += 1
            yield case


def check(case: Case, directory: Path) -> str | None:
    """Run a case in an empty directory; what is wrong with the outcome, or None."""
    for name, content in case.files.items():
        (directory / name).write_bytes(content)
    before = {path.name for path in directory.iterdir()}
    arguments = [word.format_map({"dir": directory}) for word in case.arguments]
    status, printed, complaint = steep(arguments)
    if "Traceback" in complaint:
        return complaint[-600:]
    if status == 2:
        usage = "Usage:" in complaint
        if not usage and (not complaint.startswith("error: ") or complaint.count("\n") != 1):
            return f"not one sentence: {complaint[:300]!r}"
        left = {path.name for path in directory.iterdir()} - before
        return f"refused, but wrote {printed[:80]!r} {left}" if printed or left else None
    if status not in (0, 1) or (status == 1 and "mask" not in arguments):
        return f"status {status}: {complaint[:300]}"
    written = _output(directory, arguments, printed)
    if case.expected == "refused":
        return f"accepted: {(written or '')[:300]}"
    left = {path.name for path in directory.iterdir() if path.name.endswith(".tmp")}
    if left:
        return f"left {left}"
    return _strict_lines(written) if written is not None else None


def steep(arguments: list[str], stdin: bytes = b"") -> tuple[Any, str, str]:
    """(exit status, standard output, standard error) of the entry point, run in this process."""
    from pipeline.cli.app import main

    command = _command()
    names = ("argv", "stdin", "stdout", "stderr")
    kept = {name: getattr(sys, name) for name in names}
    out, err = io.BytesIO(), io.BytesIO()
    sys.argv = ["steep", *arguments]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", errors="surrogateescape")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace")
    status: Any = 0
    try:
        main(command)
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        printed, complaint = out.getvalue(), err.getvalue()
        for name in names:
            setattr(sys, name, kept[name])
    return status, printed.decode("utf-8", "replace"), complaint.decode()


def accepted(*words: object, stdin: bytes = b"") -> str:
    """The output of a command that succeeds and writes nothing to standard error."""
    status, printed, complaint = steep([*map(str, words)], stdin)
    assert (status, complaint) == (0, ""), complaint
    return printed


def finished(*words: object, stdin: bytes = b"") -> str:
    """The output of a command that succeeds. It may write progress to standard error."""
    status, printed, told = steep([*map(str, words)], stdin)
    assert status == 0, told
    return printed


def refused(*words: object, stdin: bytes = b"") -> str:
    """The one sentence of a command that is refused and prints nothing else."""
    status, printed, complaint = steep([*map(str, words)], stdin)
    assert (status, printed, complaint.count("\n")) == (2, "", 1), complaint
    return complaint


@cache
def _command() -> Callable[[], object]:
    """The command line, built once: building it takes longer than most cases."""
    from typer.main import get_command

    from pipeline.cli.app import app

    return get_command(app)


def _output(directory: Path, arguments: list[str], printed: str) -> str | None:
    """What the command wrote as JSON lines; None for commands that print tables."""
    if arguments[0] in ("view", "calibrate"):
        return None
    if "-o" in arguments:
        path = Path(arguments[arguments.index("-o") + 1])
        return path.read_text(encoding="utf-8") if path.is_file() else None
    return printed


def _strict_lines(text: str) -> str | None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    for line in text.split("\n"):
        try:
            if line and not isinstance(json.loads(line, parse_constant=refuse), dict):
                return f"not an object: {line[:80]}"
        except ValueError as error:
            return f"invalid output: {error}: {line[:200]}"
    return None


# --- faults -----------------------------------------------------------------------------------


def _call(command: Command, records: list[Json], name: str, expected: Expected = "either") -> Case:
    return _file(command, "".join(json.dumps(one) + "\n" for one in records), name, expected)


def _file(command: Command, content: str | bytes, name: str, expected: Expected = "either") -> Case:
    arguments = tuple(word.replace("{in}", "{dir}/in.jsonl") for word in command.arguments)
    written = content.encode() if isinstance(content, str) else content
    if command.arguments[0] == "import":  # which leaves out such a line and says so
        expected = "either"
    files = {**command.files, "in.jsonl": written}
    return Case(f"{command.name}: {name}", arguments, files, expected)


def _fields(command: Command, chance: random.Random) -> Case:
    """One field dropped, or with another value."""
    records = copy.deepcopy(list(command.records))
    number = chance.randrange(len(records))
    path = chance.choice(list(_paths(records[number])))
    holder, key = _parent(records[number], path)
    label = f"record {number + 1}, {'.'.join(map(str, path))}"
    if chance.random() < 0.15:
        del holder[key]
        required = path[0] in command.required and len(path) == 1
        return _call(command, records, f"{label} dropped", "refused" if required else "either")
    if path[0] in command.required and len(path) == 1 and chance.random() < 0.5:
        holder[key] = {"a": 1} if not isinstance(holder[key], dict) else [1]
        return _call(command, records, f"{label} = {holder[key]!r:.40}", "refused")
    numeric = isinstance(holder[key], int | float) and chance.random() < 0.7
    holder[key] = chance.choice(_NUMBERS if numeric else _STRANGE)
    if chance.random() < 0.2:
        many = 2000 if len(str(holder[key])) < 1000 else 3  # not 200 MB
        holder[key] = [holder[key]] * chance.choice((1, 3, many))
    return _call(command, records, f"{label} = {holder[key]!r:.40}")


def _texts(command: Command, chance: random.Random) -> Case:
    """One value that is not JSON, or a repeated record."""
    records = copy.deepcopy(list(command.records))
    number = chance.randrange(len(records))
    if command.unique and chance.random() < 0.2:
        return _call(command, [*records, records[number]], "repeated record", "refused")
    path = chance.choice(list(_paths(records[number])))
    holder, key = _parent(records[number], path)
    holder[key] = _MARK
    value = chance.choice([*_NO_JSON, *_REFUSED_TEXT])
    lines = [json.dumps(record) + "\n" for record in records]
    lines[number] = lines[number].replace(f'"{_MARK}"', value)
    expected: Expected = "either" if value in _NO_JSON else "refused"
    return _file(command, "".join(lines), f"{'.'.join(map(str, path))} = {value:.30}", expected)


def _spans(command: Command, chance: random.Random) -> Case | None:
    """Spans that do not cover their text or ids."""
    records = copy.deepcopy(list(command.records))
    found = [
        (record, field) for record in records for field in command.span_fields if record.get(field)
    ]
    if not found:
        return None
    record, field = chance.choice(found)
    spans = [list(span) for span in record[field]]
    place = chance.randrange(len(spans))
    start, end, writer = spans[place]
    wrong = chance.choice(
        [[], [[start, end + 1, writer]], [[end, start, writer]], [[-1, end, writer]],
         [[start, 10**9, writer]], [[start, end, "reader"]], [[start, end]]]
    )  # fmt: skip
    record[field] = [*spans[:place], *wrong, *spans[place + 1 :]] or [[1, 2, "model"]]
    return _call(command, records, f"{field}: {wrong}", "refused")


def _bytes(command: Command, chance: random.Random) -> Case:
    """A fault of the whole file."""
    text = "\n".join(json.dumps(record) for record in command.records) + "\n"
    raw = text.encode()
    faults: list[tuple[str, bytes, Expected]] = [
        ("empty", b"", "either"),
        ("blank lines", b"\n \n\t\n", "either"),
        ("CRLF", text.replace("\n", "\r\n").encode(), "either"),
        ("byte order mark", b"\xef\xbb\xbf" + raw, "either"),
        ("UTF-16", text.encode("utf-16"), "either"),
        ("not UTF-8", raw.replace(b'"', b'"\xff', 3), "refused"),
        ("encoded surrogate", raw.replace(b'": "', b'": "\xed\xa0\x80', 1) + b"\xed\xa0\x80", "refused"),
        ("binary", bytes(chance.randrange(256) for _ in range(500)) + b"\xff{", "refused"),
        ("NUL", raw + b"\0", "refused"),
        ("cut off", raw[: len(raw) // 2], "refused" if len(command.records) == 1 else "either"),
        ("one array", b"[" + raw.replace(b"\n", b",")[:-1] + b"]", "refused"),
        ("null", b"null\n", "refused"),
        ("two on a line", raw.strip() + b" {}\n", "refused"),
    ]  # fmt: skip
    name, content, expected = chance.choice(faults)
    return _file(command, content, name, expected)


def make_device(path: Path, minor: int) -> None:
    """A device node of its own for root, who could replace the system's, else a link to that."""
    if os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    else:
        path.symlink_to(Path("/dev", path.name))


def _paths(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from _paths(inner, (*path, key))


def _parent(value: Any, path: Path_) -> tuple[Any, Any]:
    for key in path[:-1]:
        value = value[key]
    return value, path[-1]
