"""The arithmetic of plans: questions before filters, distances between settings, costs."""

from pathlib import Path

import pytest

from pipeline.closed_world.write import write_closed_world
from tasks.planning.estimate import Prices, cost_of
from tasks.planning.machine import has_gpu, here, is_gpu
from tasks.planning.questions import records_before_filters
from tasks.planning.source import differing


def test_questions_before_filters_come_from_the_world_limits_and_lines(tmp_path: Path) -> None:
    (tmp_path / "nq.jsonl").write_text("{}\n" * 7)
    world = {"nq_test": 30, "wiki2_test": 20, "seed": 1}
    files = [{"path": "nq_test.jsonl", "limit": None}, {"path": "2wiki_test.json", "limit": 5}]
    assert records_before_filters(files, world, None) == 35
    assert records_before_filters([{"path": "nq.jsonl", "limit": None}], None, tmp_path) == 7
    assert records_before_filters([{"path": "nq.jsonl", "limit": 3}], None, tmp_path) == 3
    assert records_before_filters([{"path": "a.json", "limit": 9}], None, tmp_path) == 9


@pytest.mark.parametrize("path", ["absent.jsonl", "array.json"])
def test_files_without_limit_that_tell_nothing_are_unknown(tmp_path: Path, path: str) -> None:
    (tmp_path / "array.json").write_text("[1, 2]")
    assert records_before_filters([{"path": path, "limit": None}], None, tmp_path) is None


def test_settings_are_compared_by_leaf_without_seeds() -> None:
    ours = {"sampling": {"samples": 8, "top_p": 1.0}, "seed": 0, "lists": (1, 2)}
    theirs = {"sampling": {"samples": 4, "top_p": 1.0}, "seed": 1, "lists": [1, 2], "more": 1}
    assert differing(ours, theirs) == 2


def test_the_cost_is_that_of_each_endpoint() -> None:
    amounts = {
        "over.prompt_tokens": 1e6,
        "over.completion_tokens": 0.0,
        "under.prompt_tokens": 0.0,
        "under.completion_tokens": 2e6,
    }
    assert cost_of(amounts, (Prices("over", 3, 9), Prices("under", 5, 7))) == 3 + 14
    assert cost_of(amounts, (Prices("judge", 1, 1),)) is None
    assert cost_of({}, ()) == 0


def test_gpus_are_named_as_in_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, GPU-1a'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "NVIDIA H100 80GB HBM3" in here()
    assert has_gpu()
    assert [is_gpu(name) for name in ("NVIDIA H100", "cpu (2 cores)", "")] == [True, False, False]
    assert any(name.startswith("cpu (") for name in here())


def test_documents_of_a_world_do_not_depend_on_its_questions(tmp_path: Path) -> None:
    """An index of the one is therefore an index of the other (`tasks.planning.embedded`)."""
    sizes = {"musique_train": 30, "nq_test": 9}
    for name, factor in (("few", 1), ("many", 2)):
        (tmp_path / name).mkdir()
        chosen = {key: factor * size for key, size in sizes.items()}
        write_closed_world(tmp_path / name, seed=3, documents=600, sizes=chosen, famous_share=0.0)
    for file in ("corpus.jsonl", "triplets.jsonl", "hyperedges.jsonl"):
        assert (tmp_path / "few" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()
    questions = [(tmp_path / name / "nq_test.jsonl").read_bytes() for name in ("few", "many")]
    assert questions[0] != questions[1]
