"""An adapter of the small model, and the start of a fake endpoint."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.llm.fake_endpoint import FakeEndpoint, Script
from tests.llm.small_models import small_adapter


@pytest.fixture(scope="session")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_adapter(model, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeEndpoint]]:
    """Gives the fake endpoint of the test a script, at first one that echoes the prompt."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeEndpoint(lambda text, before: f"answer to {text}") as server:

        def start(script: Script | None = None) -> FakeEndpoint:
            server.script = script or server.script
            server.request_counts.clear()
            return server

        yield start
