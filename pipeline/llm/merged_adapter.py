"""Merge a LoRA adapter into its base model: W + (alpha / r) B A, in 16 or 32 bit.

Input: a base model (directory or hub name) and a PEFT adapter. Output: a plain model directory
named after the content of both, so that entries keyed by its path (an engine's prefix cache, a
cached log-probability) become invalid when either changes. Weights are never merged in 4 or 8 bit,
because rounding the sum to such a grid changes the policy's output (peft#2321, trl#1324).

In 16 bit, too, the sum W + ΔW is rounded to the grid of its dtype. In bfloat16 neighboring numbers
differ by up to 1/128 of their size, so a change of 5e-5 in weights of 0.02 moves only every second
entry. Where much of an adapter would be lost (`MergeError`), it is not merged.

Processes that serve the same policy share one merged model. Each holds a shared lock on it while it
serves. A process that merges another policy removes the models that no process holds. Lock files
are open for reading too, because NFS gives a shared lock only to a reader.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.config.base import EngineConfig
from pipeline.core.errors import ConfigError, EngineError, InputError, SteepError, model_problem
from pipeline.core.model_files import model_hash
from pipeline.grammars.tokenizer import model_tokenizer
from pipeline.llm.adapter_files import check_adapter

_NAME = "merged-"
# Larger errors come from steps that are small for the grid of the dtype, such as GRPO at 1e-5.
MOST_LOST = 0.1


def merged_models(cache_dir: Path | str) -> Path:
    """The directory below ``cache_dir`` where the stages keep merged models."""
    return Path(cache_dir) / "merged"


def merged_key(base: Path | str, adapter: Path, dtype: str) -> str:
    """16 hexadecimal digits over the contents of base and adapter; a hub name is hashed as text."""
    base_key = model_hash(Path(base)) if Path(base).is_dir() else str(base)
    parts = (base_key, model_hash(adapter), dtype)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def remove_unused(folder: Path, keep: Path | None = None) -> list[Path]:
    """Remove the merged models below ``folder`` that no process serves; returns their directories.

    Files of interrupted merges are removed too. ``keep`` stays in any case.
    """
    removed = []
    names = {path.name.removeprefix(".").partition(".")[0] for path in folder.glob(f"*{_NAME}*")}
    for target in sorted(folder / name for name in names):
        if target == keep:
            continue
        with _unless_served(target) as free:
            if free and target.is_dir():
                shutil.rmtree(target)
                removed.append(target)
            if free:
                _remove_interrupted(target)
    return removed


class Served:
    """The model directory that an engine loads: the base, or the base with the adapter merged.

    ``path`` is that directory or hub name. It stays until `close`, which deletes a merged model
    only if it was written to a temporary directory, as happens when ``workspace`` is None.
    """

    def __init__(
        self, config: EngineConfig, base: Path | str, adapter: Path | None, workspace: Path | None
    ) -> None:
        self._temporary: Path | None = None
        self._lock: IO[bytes] | None = None
        self.path: Path | str = base
        if adapter is None:
            return
        if config.adapters == "loaded":
            check_adapter(adapter, base)
            return
        if workspace is None:
            workspace = self._temporary = Path(tempfile.mkdtemp(prefix="steep-merged-"))
        try:
            self.path, self._lock = _held(base, adapter, workspace, config.dtype)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _held(base: Path | str, adapter: Path, into: Path, dtype: str) -> tuple[Path, IO[bytes]]:
    """The merged model, made if it is missing, and the file whose shared lock keeps it.

    Writing ends with a rename, so an existing directory is complete. Raises InputError when the
    adapter does not match the base or changes nothing (`check_adapter`), ConfigError when ``dtype``
    would lose much of the adapter.
    """
    target = into / f"{_NAME}{merged_key(base, adapter, dtype)}"
    into.mkdir(parents=True, exist_ok=True)
    lock = _lock_file(target).open("a+b")
    try:
        # From here on nobody removes the model or its unfinished files.
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not target.is_dir():
            # A second lock lets one process merge. With the first lock alone the others would wait
            # until that process no longer serves the model.
            with target.with_name(f"{target.name}.merging").open("a+b") as merging:
                fcntl.flock(merging, fcntl.LOCK_EX)
                if not target.is_dir():
                    remove_unused(into, keep=target)
                    _remove_interrupted(target)
                    _merge(base, adapter, target, dtype)
        return target, lock
    except BaseException:
        lock.close()
        raise


def _merge(base: Path | str, adapter: Path, target: Path, dtype: str) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        save_merged(base, adapter, temporary, dtype)
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_merged(base: Path | str, adapter: Path, directory: Path, dtype: str) -> None:
    """Save base plus adapter in ``dtype``, and the base's tokenizer, to an existing directory.

    Raises InputError when the adapter does not match the base or changes nothing (`check_adapter`),
    ConfigError when ``dtype`` would lose much of the adapter.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    try:
        check_adapter(adapter, base)
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        # PEFT would load the adapter to a GPU, and leave a CUDA context beside the engine's share
        # of it.
        policy = PeftModel.from_pretrained(model, str(adapter), torch_device="cpu")
        lost = merge_and_measure(policy)
        lost.check(adapter, dtype)
        print(
            f"merged {adapter} in {dtype}: relative error {lost.relative:.1e}, "
            f"{lost.unchanged:.1%} of the entries unchanged"
        )
        policy.unload().save_pretrained(directory)
        tokenizer: Any = model_tokenizer(base)
        tokenizer.save_pretrained(directory)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        if isinstance(error, SteepError):
            raise
        raise EngineError(
            f"adapter {adapter} could not be merged into {base}: {model_problem(error)}; "
            "an adapter fits only the base model it was trained on"
        ) from error


def _lock_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.lock")


@contextmanager
def _unless_served(target: Path) -> Iterator[bool]:
    """Whether no process serves or makes ``target``, throughout the block."""
    with _lock_file(target).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _remove_interrupted(target: Path) -> None:
    """Remove the files of a killed process that merged ``target``; its lock is held."""
    for path in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class MergeError:
    """The error of merged weights against base plus adapter.

    Attributes:
        relative: ||round(W + ΔW) - W - ΔW|| / ||ΔW||; 0 for an adapter that changes nothing.
        unchanged: share of the entries with ΔW ≠ 0 that equal the base's.
        changed: number of entries of merged weights that differ from the base's.
    """

    relative: float
    unchanged: float
    changed: int

    def check(self, adapter: Path, dtype: str) -> None:
        """Raise ConfigError if more than `MOST_LOST` is lost, InputError if no entry changes."""
        if self.relative > MOST_LOST:
            raise ConfigError(
                f"{adapter}: merging in {dtype} would lose {self.relative:.0%} of the adapter "
                f"({self.unchanged:.0%} of its entries would change no weight), so the sampled "
                "policy would differ from the trained one; set engine.adapters: loaded, or "
                "engine.dtype: float32"
            )
        if not self.changed:
            raise InputError(
                f"{adapter}: merged, the adapter changes no weight of the base model; name a "
                "trained adapter"
            )


def merge_and_measure(policy: Any) -> MergeError:
    """Merge the adapter of a PEFT model into its base weights, layer by layer."""
    from peft.tuners.lora import LoraLayer

    squared_error = squared_delta = 0.0
    unchanged = changing = changed = 0
    for layer in policy.modules():
        if not isinstance(layer, LoraLayer):
            continue
        (name,) = layer.active_adapters
        weight = layer.get_base_layer().weight
        before, delta = weight.detach().clone(), layer.get_delta_weight(name).detach().float()
        layer.merge(safe_merge=True)
        after = layer.get_base_layer().weight.detach()
        changed += int((after != before).sum())
        if layer.use_dora.get(name):
            continue  # DoRA rescales the base weights; its delta says nothing about the merged ones
        squared_error += float((after.double() - before.double() - delta.double()).square().sum())
        squared_delta += float(delta.double().square().sum())
        unchanged += int(((after == before) & (delta != 0)).sum())
        changing += int((delta != 0).sum())
    if not squared_delta:
        return MergeError(0.0, 0.0, changed)
    return MergeError((squared_error / squared_delta) ** 0.5, unchanged / changing, changed)
