"""A stored run, and a client of the browser over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipeline.look.browse.app import create_app
from pipeline.look.browse.site import RunEntry, Site
from tests.browse.stored_run import NAME, TINY_READER, write_stored_run


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    root = tmp_path_factory.mktemp("browse")
    write_stored_run(root / "runs")
    write_stored_run(root / "runs", "other", better=True)
    entries = {
        name: RunEntry(name, root / "runs" / name / "store", base_model=TINY_READER)
        for name in (NAME, "other")
    }
    return Site(entries, root / "cache")


@pytest.fixture(scope="session")
def client(site: Site) -> Iterator[TestClient]:
    with TestClient(create_app(site), base_url="http://127.0.0.1:8766") as client:
        yield client


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    write_stored_run(root)
    return root


@pytest.fixture
def runs(stored: Path, tmp_path: Path) -> Path:
    """A run of the test's own, which it may change."""
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    return tmp_path
