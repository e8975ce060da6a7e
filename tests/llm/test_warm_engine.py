"""A vLLM engine in a process of its own: its users get what they would get from an engine of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from pipeline.config.base import EngineConfig
from pipeline.core.errors import EngineError, InputError
from pipeline.core.shipped import find_model
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult, open_engine
from pipeline.llm.warm_engine import SOCKET, warm_engine
from tests.llm.small_models import small_adapter, small_model
from tests.waiting import ending

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow
MODEL = find_model("data/tiny_reader")
CONFIG = EngineConfig(
    kind="vllm", dtype="bfloat16", max_model_len=512, cpu_kv_cache_gib=1, enforce_eager=True
)
USER = """
import sys
from tests.llm.test_warm_engine import opened, requests
engine = opened()
for request in requests(): engine.add(request)
engine.step()
print("generates", flush=True)
sys.stdin.read()
"""


def requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(str(n), [10 + n, 20, 30, 40], 24, (), temperature, 1.0, seed=n)
        for n, temperature in enumerate((0.0, 0.7, 1.0, 1.0))
    ]


def opened() -> Engine:
    return warm_engine(CONFIG, MODEL, adapter=None, seed=0, workspace=Path("unused"))


def generated(engine: Engine) -> list[GenerationResult]:
    results = engine.generate(requests())
    assert engine.unfinished() == 0
    engine.close()
    return results


def generated_alone(
    config: EngineConfig, model: Path, adapters: list[Path]
) -> list[list[GenerationResult]]:
    """What an engine of each adapter generates that no one else has used."""
    return [generated(open_engine(config, model, adapter=path, seed=0)) for path in adapters]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server's output; the environment names its socket."""
    socket = tmp_path_factory.mktemp("socket") / "socket"
    log = tmp_path_factory.mktemp("engine") / "log.txt"
    command = [sys.executable, "-m", "pipeline.llm.warm_engine", str(socket)]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream) as server:
        while not socket.exists():
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SOCKET, str(socket))
            yield log
        server.terminate()
    assert not socket.parent.exists()


def test_all_users_get_what_an_own_engine_generates(log: Path) -> None:
    own = generated(open_engine(CONFIG, MODEL, adapter=None, seed=0))
    for _ in range(2):
        assert generated(opened()) == own
    assert log.read_text().splitlines() == [f"opens {MODEL}", f"reused for {MODEL}"]
    user = subprocess.Popen(
        [sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    with ending(user):  # while its requests are in progress
        assert user.stdout is not None
        assert user.stdout.readline() == b"generates\n"
    assert generated(opened()) == own


def test_policies_of_one_base_model_share_an_engine(log: Path, tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    adapters = [small_adapter(model, tmp_path / f"adapter-{n}", seed=n) for n in range(2)]
    config = CONFIG.model_copy(update={"adapters": "loaded", "dtype": "float32"})
    # In a process of its own, because earlier tests may have changed how torch computes in this one.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        own = pool.submit(generated_alone, config, model, adapters).result()
    assert own[0] != own[1]
    for number in (0, 1, 0):
        shared = warm_engine(config, model, adapter=adapters[number], seed=0, workspace=tmp_path)
        assert generated(shared) == own[number]
    assert log.read_text().splitlines()[-3:] == [
        f"opens {adapters[0]}",
        f"reused for {adapters[1]}",
        f"reused for {adapters[0]}",
    ]


def test_the_errors_of_an_engine_arrive(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such model directory; correct model\.base"):
        warm_engine(CONFIG, tmp_path / "absent", adapter=None, seed=0, workspace=tmp_path)
    engine = opened()
    with pytest.raises(EngineError, match="vLLM rejected request long"):
        engine.add(GenerationRequest("long", [1] * 600, 1, (), 0.0, 1.0, 0))
    engine.close()


def test_an_engine_that_has_ended_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(SOCKET, str(tmp_path / "socket"))
    with pytest.raises(EngineError, match=r"has ended .*set execution.ray.warm_engines to false"):
        opened()
