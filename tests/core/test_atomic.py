"""Outputs replace regular files atomically, and are written through links, FIFOs and devices."""

import os
import stat
import threading
from pathlib import Path

import pytest

from pipeline.core.atomic import check_distinct, place, text_output, write_text
from pipeline.core.errors import InputError
from pipeline.core.record_io import write_jsonl
from tests.waiting import LIMIT


def write(path, *texts):
    with text_output(path) as output:
        for text in texts or ["new\n"]:
            output(text() if callable(text) else text)


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text('{"a": 1}\n')
    target.chmod(0o600)
    link.symlink_to(target)
    write(link, '{"a": 2}\n')
    assert link.is_symlink()
    assert target.read_text() == '{"a": 2}\n'
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "later")
    write(dangling)
    assert (tmp_path / "later").read_text() == "new\n"


def test_a_fifo_and_a_device_are_written_through(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_text()))
    reader.start()
    write(fifo)
    reader.join(LIMIT)
    assert received == ["new\n"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    write("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fifo"]


def test_a_file_behind_dev_fd_is_written_and_not_replaced(tmp_path):
    path = tmp_path / "log"
    with path.open("a") as stream:
        stream.write("before\n")
        stream.flush()
        write(f"/dev/fd/{stream.fileno()}")
        stream.write("after\n")
    assert path.read_text() == "before\nnew\nafter\n"


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "is a directory"), ("file/below", "cannot be written: Not a directory")],
)
def test_outputs_that_cannot_be_files_are_refused_without_litter(tmp_path, name, problem):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match=problem):
        write(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_nothing_is_written_when_the_block_fails(tmp_path, capsys):
    path = tmp_path / "kept"
    path.write_text("half")
    for output in (path, "-"):
        with pytest.raises(ZeroDivisionError):
            write(output, "half", lambda: 1 / 0)
    assert path.read_text() == "half"
    assert capsys.readouterr().out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_two_outputs_must_be_two_files(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    check_distinct([tmp_path / "file", None, "-", "/dev/null", "/dev/null"], ["-", "/dev/null"])
    for pair in (("-", "-"), (tmp_path / "file", tmp_path / "link")):
        with pytest.raises(InputError, match="two outputs"):
            check_distinct(pair)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="link: is an input too"):
        check_distinct([tmp_path / "link"], [tmp_path / "file"])


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ("", '{"a": 1}\n'),
        ('{"a": 2, "tools": "[]"}\n{"a": 3}\n', '{"a": 1}\n'),  # fields that may be left out
        ('[\n {\n  "a": 2\n }\n]\n', '[\n {\n  "a": 1\n }\n]\n'),
        ("<!doctype html>\n<title>Pairs</title>\n<p>1", "<!doctype html>\n<title>Pairs</title>\n"),
        ("## Answers\n\n| 1 |\n", "## Answers\n\n| 2 |\n"),
    ],
)
def test_an_output_replaces_an_earlier_output_of_its_kind(tmp_path, there, text):
    path = tmp_path / "out"
    path.write_text(there)
    write(path, text)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "there",
    [
        b"precious",
        b"\n\nprecious",
        b"question,answer\nWho?,Ada\n",
        b'{"question": "Who?"}\n',
        b'{"a": 1, "rewards": {}}\n',
        b'[{"question": "Who?"}]',
        b"<!doctype html>\n<title>Mine</title>\n",
        b"PAR1\x00\xff",
        b"\x00" * 9,
    ],
)
@pytest.mark.parametrize(
    "text",
    ['{"a": 1}\n', '[\n {\n  "a": 1\n }\n]\n', "<!doctype html>\n<title>A</title>\n", "## A\n"],
)
def test_a_file_of_another_kind_is_kept(tmp_path, there, text):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(there)
    link.symlink_to(path)
    with pytest.raises(InputError, match="exists and is none that this command writes"):
        write(link, text, text)
    with pytest.raises(InputError, match="exists and is none that this command writes"):
        write_jsonl(link, [])
    assert path.read_bytes() == there
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "out"]


def test_a_read_only_file_is_kept(tmp_path):
    path = tmp_path / "out"
    path.write_text("new\n")
    path.chmod(0o444)
    with pytest.raises(InputError, match="is read-only"):
        write(path)


def test_a_directory_takes_its_place_after_all_its_files_are_on_the_disk(tmp_path, monkeypatch):
    (tmp_path / "made" / "below").mkdir(parents=True)
    (tmp_path / "made" / "below" / "weights").write_text("1")
    flushed, made = [], tmp_path / "made"
    monkeypatch.setattr(
        os, "fsync", lambda n: flushed.append(Path(f"/proc/self/fd/{n}").readlink())
    )
    place(made, tmp_path / "there")
    assert (tmp_path / "there" / "below" / "weights").read_text() == "1"
    assert flushed == [made / "below", made / "below/weights", made, tmp_path, tmp_path]


def test_an_interrupted_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_text(path, "old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
