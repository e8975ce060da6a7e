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
    for split in ("sft", "sampling", "validation", "test"):
        files, before = getattr(small.data, split), getattr(whole.data, split)
        assert [file.path for file in files] == [file.path for file in before]
        if whole.data.closed_world is None:
            assert all(file.limit <= 24 for file in files)


def test_a_closed_world_shrinks_to_a_tenth() -> None:
    whole = config.load(ROOT / "configs/embedded.yaml")
    small = config.load(ROOT / "configs/embedded.yaml", probe_overrides(whole))
    assert small.data.closed_world is not None
    assert small.data.closed_world.documents == 300  # fewer do not hold the questions
    assert small.data.closed_world.nq_sampling == 9
    assert small.sft_data.sizes == {3: 105, 4: 70}
    assert (small.sampling, small.retrieval, small.engine) == (
        whole.sampling,
        whole.retrieval,
        whole.engine,
    )
