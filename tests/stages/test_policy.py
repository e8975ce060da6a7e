"""Settings of rollouts from the settings of a run."""

import pytest

from pipeline import config
from pipeline.stages.sample import rollout_settings
from tests.tasks.counting_tasks import ROOT


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [((), 512), (("engine.max_num_seqs=100",), 200), (("sampling.in_flight=7",), 7)],
)
def test_twice_as_many_trajectories_are_in_flight_as_the_engine_decodes(overrides, expected):
    settings = config.load(ROOT / "configs/embedded.yaml", overrides)
    assert rollout_settings(settings, temperature=1.0).in_flight == expected
