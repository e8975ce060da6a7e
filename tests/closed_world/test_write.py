"""The directory on disk: byte-identical in every process, and readable."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.closed_world.fact_generation import NearMisses
from pipeline.closed_world.world import generate_world
from pipeline.closed_world.write import read_world, write_closed_world
from pipeline.core.errors import InputError

SIZES = {"musique_train": 30, "musique_test": 9, "hotpotqa_test": 6, "wiki2_test": 9, "nq_test": 12}
SCRIPT = """
import sys
from pathlib import Path
from pipeline.closed_world.write import write_closed_world
write_closed_world(Path(sys.argv[1]), seed=2, documents=500, sizes=eval(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("closed") / "world"
    write_closed_world(directory, seed=2, documents=500, sizes=SIZES)
    return directory


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_process_writes_the_same_bytes(written: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "world"), repr(SIZES)],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert digests(tmp_path / "world") == digests(written)


def test_every_split_has_a_file_and_every_question_a_note(written: Path) -> None:
    world = json.loads((written / "world.json").read_text(encoding="utf-8"))
    assert {path.name for path in written.iterdir()} == {
        "corpus.jsonl",
        "triplets.jsonl",
        "hyperedges.jsonl",
        "world.json",
        "musique_train.jsonl",
        "musique_test.jsonl",
        "hotpotqa_test.json",
        "2wiki_test.json",
        "nq_test.jsonl",
    }
    for name, notes in world["questions"].items():
        path = written / name
        records = lines(path) if path.suffix == ".jsonl" else json.loads(path.read_text())
        ids = [record.get("id", record.get("_id")) for record in records]
        assert [note["id"] for note in notes] == ids
        assert all(1 <= note["shortest_path"] <= note["hops"] for note in notes)
        parts = [record.get("split_part") for record in records]
        unseen = {True: "unseen", False: "seen"}
        expected = [unseen[note["unseen"]] if "test" in name else None for note in notes]
        assert parts == expected


def test_read_world_regenerates_the_world_of_a_directory(written: Path) -> None:
    """A world without near misses does not name their shares, as before there were any."""
    assert "family_share" not in json.loads((written / "world.json").read_text(encoding="utf-8"))
    world = read_world(written)
    texts = [record["text"] for record in lines(written / "corpus.jsonl")]
    assert [document.text for document in world.documents] == texts


def test_a_world_with_near_misses_is_regenerated_with_them(tmp_path: Path) -> None:
    near = NearMisses(common_share=0.5, family_share=0.5)
    write_closed_world(tmp_path, seed=2, documents=300, sizes={}, near_misses=near)
    assert read_world(tmp_path) == generate_world(2, documents=300, near_misses=near)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"family_share": None}, "family_share: no share; write the world again"),
        ({"family_share": "half"}, "family_share: no share; write the world again"),
        ({"family_share": 1.5}, "family_share: no share; write the world again"),
        ({"seed": "2"}, "seed or documents: no number; write the world again"),
        ({"corpus_sha256": "0"}, "another version of the generator; write it again"),
    ],
)
def test_a_broken_description_and_that_of_another_generator_are_rejected(
    written: Path, tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    summary = json.loads((written / "world.json").read_text(encoding="utf-8"))
    (tmp_path / "world.json").write_text(json.dumps({**summary, **changes}))
    with pytest.raises(InputError, match=problem):
        read_world(tmp_path)
