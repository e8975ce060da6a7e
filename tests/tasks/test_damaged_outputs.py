"""Outputs that changed after they were complete: who notices, and what is said."""

import hashlib
import json
import os
import shutil

import pytest

from pipeline.core.errors import StoreError
from pipeline.engine.run import RunFailed, run
from pipeline.engine.status import status, verify, why
from tests.tasks.counting_tasks import First, Second, Trains, executions, task
from tests.tasks.small_run import commit_text


@pytest.fixture
def first(workspace):
    """The directory of the completed stage that `Second` reads."""
    return complete_first(workspace, "5")


def complete_first(workspace, number, *overrides):
    return commit_text(task(First, workspace, *overrides), number, "number.txt", wall_seconds=1.5)


def flip(directory):
    (directory / "number.txt").write_text("6")  # as long as before


DAMAGES = {
    "number.txt has 0 bytes instead of 1": lambda file: file.write_bytes(b""),
    "number.txt is missing": lambda file: file.unlink(),
}


@pytest.mark.parametrize(("problem", "damage"), DAMAGES.items(), ids=["truncated", "missing"])
def test_a_truncated_or_missing_file_stops_the_run_with_the_command_that_remakes_it(
    workspace, first, problem, damage
):
    damage(first / "number.txt")
    for kind in (First, Second):
        with pytest.raises(
            StoreError,
            match=rf"first is damaged .*{problem}.* steep run first --force --config .* --set",
        ):
            run(task(kind, workspace))
    assert executions(workspace) == []
    damaged, following = status(task(Second, workspace))
    assert (damaged.state, damaged.damage) == ("done", [problem])
    assert str(damaged.remake).startswith("steep run first --force --config ")
    assert (following.state, following.remake) == ("missing", None)


def test_an_output_takes_the_place_of_a_link_to_nothing_and_of_leftovers(workspace):
    """A killed process may have had the same id: in containers it is often 1."""
    place = task(First, workspace).directory
    leftover = place.with_name(f"{place.name}.discarded-{os.getpid()}")
    for there in (place, leftover):
        there.mkdir(parents=True)
        (there / "number.txt").write_text("4")
    assert complete_first(workspace, "5") == place
    shutil.rmtree(place)
    place.symlink_to(workspace / "unmounted")
    assert complete_first(workspace, "6") == place
    assert (place / "number.txt").read_text() == "6"
    assert [one.name for one in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize("file", ["number.txt", "manifest.json"])
def test_the_named_command_repairs_the_run(workspace, first, file):
    (first / file).write_bytes(b"")
    run(task(First, workspace), force=True)
    assert (run(task(Second, workspace)) / "total.txt").read_text() == "15"


def test_a_flipped_byte_stops_a_stage_that_trains(workspace, first):
    flip(first)
    with pytest.raises(
        RunFailed, match=r"number\.txt has other content \(SHA-256 e7f6c01177"
    ) as caught:
        run(task(Trains, workspace))
    assert caught.value.exit_status == 2
    assert executions(workspace) == []


DAMAGED_MANIFESTS = {
    "empty": "",
    "list": "[]",
    "no counts": '{"fingerprint": "0", "key": {}}',
    "no files": {"files": None},
    "outside": {"files": {"../../../secret": {"size": 1, "sha256": "0"}}},
    "absolute": {"files": {"/etc/passwd": {"size": 1, "sha256": "0"}}},
    "another type": {"counts": {"rows": "many"}},
    "of shards": {"shards": {"shard-000": {"wall_seconds": "long"}}},
}


@pytest.mark.parametrize("text", DAMAGED_MANIFESTS.values(), ids=DAMAGED_MANIFESTS)
def test_a_damaged_manifest_is_a_sentence_everywhere(workspace, first, text):
    if isinstance(text, dict):  # values in the place of the manifest's own; None: without it
        values = json.loads((first / "manifest.json").read_text()) | text
        text = json.dumps({name: value for name, value in values.items() if value is not None})
    (first / "manifest.json").write_text(text, encoding="latin-1")
    [row, following] = status(task(Second, workspace))
    assert row.state == "done"
    assert "not a manifest" in row.damage[0]
    assert following.state == "missing"
    assert "damaged" in why(task(First, workspace))[0]
    assert "not a manifest" in verify(task(Second, workspace))[0].damage[0]
    with pytest.raises(StoreError, match=r"first is damaged .* not a manifest"):
        run(task(Second, workspace))


def test_an_output_in_the_place_of_another_is_noticed(workspace, first):
    other = complete_first(workspace, "6", "retrieval.top_k=6")
    shutil.rmtree(first)
    other.rename(first)
    with pytest.raises(StoreError, match="belongs to the output"):
        run(task(Second, workspace))


def test_a_forged_output_is_not_told_from_a_real_one(workspace, first):
    """Hashes are not signed: the limit that SECURITY.md names."""
    (first / "number.txt").write_text("6")
    manifest = json.loads((first / "manifest.json").read_text())
    digest = hashlib.sha256(b"6").hexdigest()
    manifest["files"]["number.txt"] = {"size": 1, "sha256": digest}
    (first / "manifest.json").write_text(json.dumps(manifest))
    assert [row.damage for row in verify(task(First, workspace))] == [[]]
