"""A file of a folder may have any name: it is read, and its name is text in every output."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError, check_name
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk
from pipeline.core.text import file_name
from pipeline.engine.store import Store, read_manifest
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.folders import find_files
from tasks import task_for
from tasks.corpus import run
from tests.cli.malformed_inputs import steep
from tests.stages.test_corpus import context

LITERAL = {
    b"port.md": "port.md",
    b"caf\xc3\xa9.md": "café.md",
    b"caf\xe9.md": r"caf\xe9.md",
    rb"caf\xe9.md": r"caf\\xe9.md",
    rb"c:\docs.md": r"c:\docs.md",
    b"two\nlines.md": r"two\x0alines.md",
    b"\x1b[31mred.md": r"\x1b[31mred.md",
    b"\xc2\x85.md": r"\u0085.md",
    b"\x85.md": r"\x85.md",
    b"'\"<b>&%s{}[a]*.md": "'\"<b>&%s{}[a]*.md",
}


@pytest.mark.parametrize(("raw", "text"), LITERAL.items())
def test_bytes_that_are_no_text_and_control_characters_are_written_out(
    raw: bytes, text: str
) -> None:
    assert file_name(os.fsdecode(raw)) == text


BYTES = st.binary(min_size=1, max_size=40) | st.text(
    st.sampled_from("\\xu0e98a \u0085\udce9\udc85\n"), min_size=1
).map(os.fsencode)
NAMES = BYTES.filter(lambda raw: not {0, ord("/")} & set(raw) and raw[0] not in b".")


@given(st.sets(NAMES, min_size=2, max_size=6))
def test_different_names_stay_different_and_can_be_encoded(raw: set[bytes]) -> None:
    texts = {file_name(os.fsdecode(name)) for name in raw}
    assert len(texts) == len(raw)
    assert all(len(text.encode().splitlines()) <= 1 for text in texts)


def test_any_names_pass_from_the_folder_to_chunks_and_manifest(tmp_path: Path) -> None:
    chance = random.Random(4)
    names = {chance.randbytes(chance.randint(1, 30)) for _ in range(40)} | set(LITERAL)
    names = {name for name in names if not {0, ord("/")} & set(name) and name[0] != ord(".")}
    for number, name in enumerate(sorted(names)):
        folder, text = tmp_path / "docs" / os.fsdecode(name), os.fsdecode(name)
        folder.mkdir(parents=True)
        (folder / f"{text}.md").write_text(f"Kiln {number} is hot.")
        (folder / f"{text}.jsonl").write_text(json.dumps({"text": f"Row {number} is long."}))
    overrides = ("corpus.files=[{path: docs}]", "corpus.chunk_words=9", f"cache_dir={tmp_path}/c")
    stage = context(tmp_path, "{}", *overrides)
    counts = run(stage)
    assert (counts["files"], counts["skipped_files"]) == (2 * len(names), 0)
    chunks = read_records(stage.output / "chunks.parquet", Chunk)
    sources = {chunk.source for chunk in chunks}
    assert len(sources) == 2 * len(names)
    overrides += ("data={}", f"data.root={tmp_path}", f"runs_dir={tmp_path}/runs")
    key = task_for("corpus", "configs/embedded.yaml", overrides).key
    assert set(key.files) == sources
    store = Store(tmp_path / "store")
    store.directory(key).parent.mkdir(parents=True)
    final = store.commit(key, stage.output, {"counts": counts})
    assert read_manifest(final)["key"]["files"] == dict(key.files)


@pytest.mark.slow
def test_every_command_serves_a_folder_with_such_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for raw in LITERAL:
        Path(os.fsdecode(os.fsencode(tmp_path / "docs") + b"/" + raw)).write_text("A kiln.")
    Path(os.fsdecode(b"docs/no\xe9.\xe9xt")).write_text("x")
    for command in (
        ["init", "own", "--docs", "docs", "--output", "own.yaml"],
        ["run", "corpus", "--config", "own.yaml"],
        ["status", "--config", "own.yaml"],
        ["run", "corpus", "--config", "own.yaml"],
        ["verify", "--config", "own.yaml"],
    ):
        status, _, problem = steep(command)
        assert (status, problem) == (0, ""), command
    assert steep(["check", "--config", "own.yaml"])[0] == 2  # without questions
    [skipped] = json.loads(next(tmp_path.glob("runs/*/store/corpus/*/skipped.json")).read_text())
    assert skipped["file"] == r"docs/no\xe9.\xe9xt"


def test_special_and_vanished_files_of_a_folder_are_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("A kiln.")
    os.mkfifo(folder / "fifo.md")
    (folder / "loop").symlink_to(folder)
    (folder / "gone.md").symlink_to(folder / "nowhere.md")
    found = find_files(tmp_path, "docs")
    assert {one.name: one.problem for one in found} == {
        "docs/a.md": None,
        "docs/fifo.md": "not a regular file",
        "docs/gone.md": "a symbolic link, which is not followed",
        "docs/loop": "a symbolic link, which is not followed",
    }
    with pytest.raises(InputError, match="not a regular file"):
        list(read_documents(folder / "fifo.md"))
    (folder / "a.md").unlink()
    with pytest.raises(InputError, match=r"docs/a\.md: cannot be read: No such file"):
        list(read_documents(found[0]))


def test_a_folder_of_any_depth_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1100):
        Path("d").mkdir()
        os.chdir("d")
    Path("a.md").write_text("A kiln.")
    try:
        [found] = find_files(tmp_path, "d")
        assert next(read_documents(found)).text == "A kiln."
    finally:  # pytest could not remove them
        Path("a.md").unlink()
        for _ in range(1100):
            os.chdir("..")
            Path("d").rmdir()


def test_an_argument_that_is_no_text_is_refused_in_one_sentence() -> None:
    problem = "not UTF-8, which configurations and reports need; rename the file or folder"
    with pytest.raises(InputError) as error:
        check_name("docs/caf\udce9")
    assert str(error.value) == rf"docs/caf\xe9: {problem}"
