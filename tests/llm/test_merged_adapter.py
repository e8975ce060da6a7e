"""Merged models: what 16-bit weights keep of an adapter, and how processes share them."""

import fcntl
import queue
import shutil
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from pipeline.config import EngineConfig
from pipeline.core.errors import ConfigError
from pipeline.llm.merged_adapter import Served, remove_unused
from tests.llm.adapter_defects import Defect
from tests.waiting import LIMIT

HALF, WHOLE = (EngineConfig(kind="transformers", dtype=dtype) for dtype in ("bfloat16", "float32"))


def scaled(adapter: Path, directory: Path, rms: float) -> Path:
    """A copy of the adapter whose changes of the weights have this root mean square."""

    def scale(tensors: dict[str, Any]) -> dict[str, Any]:
        downs = {name: value for name, value in tensors.items() if "lora_A" in name}
        deltas = (4 * tensors[name.replace("lora_A", "lora_B")] @ downs[name] for name in downs)
        squares = [delta.square().mean() for delta in deltas]  # 4: alpha / r of the small adapter
        now = (sum(squares) / len(squares)) ** 0.5
        return tensors | {name: value * rms / now for name, value in downs.items()}

    return Defect("scaled", scale).write(adapter, directory)


def test_an_adapter_too_small_for_bfloat16_is_refused_with_the_remedy(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    """The weights of the base are normal with deviation 0.1, whose neighbors are 5e-4 apart."""
    small = scaled(adapter, tmp_path / "small", rms=2e-4)
    with pytest.raises(ConfigError, match=r"change no weight\).* set engine.adapters: loaded"):
        Served(HALF, model, small, tmp_path / "merged")
    assert not any(path.is_dir() for path in (tmp_path / "merged").iterdir())
    Served(WHOLE, model, small, tmp_path / "merged").close()


def test_shards_that_find_no_merged_model_at_the_same_moment_serve_it_side_by_side(
    model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks belong to open files, so threads meet each other as processes do."""
    both, flock = threading.Barrier(2), fcntl.flock
    met = threading.local()

    def meet(file: IO[bytes], operation: int) -> None:
        flock(file, operation)
        if operation == fcntl.LOCK_SH and not hasattr(met, "done"):
            met.done = True
            both.wait(LIMIT)

    monkeypatch.setattr(fcntl, "flock", meet)
    ready: queue.Queue[Served] = queue.Queue()

    def serve() -> None:
        ready.put(Served(WHOLE, model, adapter, tmp_path))

    for _ in range(2):
        threading.Thread(target=serve, daemon=True).start()
    served = [ready.get(timeout=LIMIT), ready.get(timeout=LIMIT)]  # neither has ended
    assert served[0].path == served[1].path
    assert not remove_unused(tmp_path)
    for shard in served:
        shard.close()
    assert remove_unused(tmp_path) == [served[0].path]


def test_another_policy_replaces_merged_models_that_nobody_serves(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    others = [scaled(adapter, tmp_path / f"{rms}", rms) for rms in (0.1, 0.2)]
    into = tmp_path / "merged"
    first = Served(WHOLE, model, adapter, into)
    interrupted = into / ".merged-0123456789abcdef.1.tmp"
    interrupted.mkdir()
    second = Served(WHOLE, model, others[0], into)
    assert first.path.is_dir()  # still served
    assert not interrupted.exists()
    first.close()
    assert first.path.is_dir()  # kept for the next shard or stage
    third = Served(WHOLE, model, others[1], into)
    assert not first.path.exists()
    assert second.path.is_dir()
    second.close()
    assert remove_unused(into) == [second.path]
    third.close()
    assert remove_unused(into) == [third.path]


def test_a_merged_model_whose_removal_was_killed_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "merged-0123456789abcdef"
    target.mkdir()
    for name in ("chat_template.jinja", "config.json"):
        (target / name).write_text("{}")

    def killed(folder: Path, **_: object) -> None:
        (folder / "chat_template.jinja").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_unused(tmp_path)
    assert not target.exists()
    assert remove_unused(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [f"{target.name}.lock"]


def test_a_merged_model_without_a_workspace_is_deleted_with_its_engine(
    model: Path, adapter: Path
) -> None:
    served = Served(WHOLE, model, adapter, None)
    assert (served.path / "config.json").is_file()
    served.close()
    assert not served.path.parent.exists()
