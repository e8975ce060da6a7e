"""How the command ends when a stream is closed or full, when it is interrupted, and when it has a bug."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli.app import main
from pipeline.core.errors import InputError
from tests.cli.malformed_inputs import make_device, refused, steep
from tests.cli.valid_records import COMMANDS, Command
from tests.waiting import LIMIT

RECORD = '{"answer": "x", "answers": ["x"]}'
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "status", "complaint"),
    [
        (f"metrics - <<< '{RECORD}' > full", 2, "error: standard output: cannot be written: {}"),
        ("--help > full", 2, "error: {}"),
        (f"metrics - <<< '{RECORD}' 2> full", 0, ""),
        (f"metrics - <<< '{RECORD}' >&-", 2, "error: standard output: cannot be written: {closed}"),
        (f"metrics - <<< '{RECORD}' 2>&-", 0, ""),
        ("metrics - <&-", 2, "error: <stdin>: not a readable file: {closed}"),
        ("config show >&-", 2, "error: {closed}"),
    ],
)
def test_closed_and_full_streams_are_one_sentence(
    tmp_path: Path, command: str, status: int, complaint: str
) -> None:
    make_device(tmp_path / "full", 7)
    call = ["bash", "-c", f"{sys.executable} -m pipeline.cli {command}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    expected = complaint.format("No space left on device\n", closed="Bad file descriptor\n")
    assert (done.returncode, done.stderr) == (status, expected)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("a.jsonl:1: no"), 2, "error: a.jsonl:1: no\n"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "/x"), 2, "error: /x: Permission denied\n"),
        (BrokenPipeError(), 1, ""),
        (ZeroDivisionError(), 70, "This is a bug in steep"),
    ],
)
def test_failures_have_a_status_and_a_sentence(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == status
    printed = capsys.readouterr().err
    assert message in printed
    assert ("Traceback" in printed) == (status == 70)


def test_outputs_are_written_through_links_fifos_and_devices(tmp_path: Path) -> None:
    """Only regular files of the command's own are replaced. All commands write by one function."""
    [command] = [command for command in COMMANDS if command.arguments[0] == "metrics"]
    source = "".join(json.dumps(record) + "\n" for record in command.records)
    (tmp_path / "in").write_text(source, encoding="utf-8")
    call = command.call(tmp_path, tmp_path / "in")
    if "-o" in call:
        del call[call.index("-o") : call.index("-o") + 2]

    def write(name: str) -> int:
        status, _, _ = steep([*call, "-o", str(tmp_path / name)])
        return int(status)

    assert write("plain") == 0
    written = (tmp_path / "plain").read_text(encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for earlier in ("", written * 2):
        (tmp_path / "target").write_text(earlier, encoding="utf-8")
        assert write("link") == 0
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "target").read_text(encoding="utf-8") == written
    (tmp_path / "target").write_text("precious", encoding="utf-8")
    (tmp_path / "same").symlink_to(tmp_path / "in")
    assert [write("link"), write("same"), write("in")] == [2, 2, 2]
    assert (tmp_path / "target").read_text(encoding="utf-8") == "precious"
    assert (tmp_path / "in").read_text(encoding="utf-8") == source

    make_device(tmp_path / "null", 3)
    make_device(tmp_path / "full", 7)
    assert [write("null"), write("full"), write(".")] == [0, 2, 2]
    assert (tmp_path / "null").is_char_device()
    assert (tmp_path / "full").is_char_device()

    os.mkfifo(tmp_path / "fifo")
    assert _through_fifo(tmp_path / "fifo", lambda: write("fifo")) == written
    assert (tmp_path / "fifo").is_fifo()
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [*COMMANDS, Command(("config", "show", "--config", "{in}"), ())],
    ids=lambda command: command.name,
)
def test_a_fifo_as_input_is_refused_and_does_not_hang(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    complaint = refused(*command.call(tmp_path, tmp_path / "fifo"))
    assert re.fullmatch(r"error: .*fifo: is (a FIFO|not a regular file); name .*\n", complaint)


def _through_fifo(fifo: Path, write: Callable[[], int]) -> str:
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_text(encoding="utf-8")))
    reader.start()
    assert write() == 0
    reader.join(LIMIT)
    return received[0]
