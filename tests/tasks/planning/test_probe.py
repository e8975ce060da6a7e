"""Configurations of probes."""

from pathlib import Path

import pytest

from pipeline import config
from tasks.planning.probe import probe_overrides

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_has_a_smaller_probe(path: Path) -> None:
    whole = config.load(path)
    small = config.load(path, probe_overrides(whole))
    assert small.name == f"{whole.name}-probe"
    assert small.run_dir != whole.run_dir
    assert small.rounds <= 1
    assert sum(small.sft_data.sizes.values()) <= sum(whole.sft_data.sizes.values())
    for split in ("sampling", "validation", "test"):
        files, before = getattr(small.data, split), getattr(whole.data, split)
        assert [file.path for file in files] == [file.path for file in before]
        if whole.data.closed_world is None:
            assert all(file.limit <= 24 for file in files)


def test_a_closed_world_keeps_its_documents_and_the_cold_start() -> None:
    """Then the probe's policy is that of the run, and its embeddings are those of the run."""
    whole = config.load(ROOT / "configs/embedded.yaml")
    small = config.load(ROOT / "configs/embedded.yaml", probe_overrides(whole))
    assert small.data.closed_world is not None
    assert small.data.closed_world.documents == 1500
    assert small.data.closed_world.musique_train == 2400
    assert small.data.closed_world.nq_sampling == 9
    assert small.data.closed_world.nq_test == 10
    for block in ("sft_data", "sft", "sampling", "retrieval", "engine"):
        assert getattr(small, block) == getattr(whole, block)
