"""The stand-ins, written once for all workers of a test session."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.published.runs import StandIns, write_stand_ins


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> StandIns:
    base = tmp_path_factory.getbasetemp()
    root: Path = (base if worker_id == "master" else base.parent) / "stand-ins"
    root.mkdir(exist_ok=True)
    with FileLock(root / "lock"):
        return write_stand_ins(root)
