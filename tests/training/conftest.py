"""A base model and a policy 0 over it, made once for all files that train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.sft import run as run_sft
from tests.training.tiny_policy import Run, write_base


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="session")
def policy_0(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Data, and the policy that SFT trained on them; a test trains in a copy of this run."""
    run = Run(tmp_path_factory.mktemp("policy-0"), base)
    run.write_data()
    run_sft(run.context("sft", "sft"))
    return run
