"""The working directory of tests that run small stages."""

import os
from pathlib import Path

import pytest

from tests.tasks.counting_tasks import ROOT


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    search = [str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))
    monkeypatch.setenv("EXECUTIONS", str(tmp_path / "executions.txt"))
    monkeypatch.setenv("KILL", str(tmp_path / "kill"))
    monkeypatch.setenv("RELEASE", str(tmp_path / "release"))
    return tmp_path


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working directory, where no stage has an output."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
