"""Merge a LoRA adapter into its base model: W + (alpha / r) B A, in 16 or 32 bit.

Input: a base model (directory or hub name) and a PEFT adapter. Output: a plain model directory
named after the content of both, so that entries keyed by its path (an engine's prefix cache, a
cached log-probability) become invalid when either changes. Weights are never merged in 4 or 8 bit,
because rounding the sum to such a grid changes the policy's output (peft#2321, trl#1324).

In 16 bit, too, the sum W + ΔW is rounded to the grid of its dtype. In bfloat16 neighboring numbers
differ by up to 1/128 of their size, so a change of 5e-5 in weights of 0.02 moves only every second
entry. Where much of an adapter would be lost (`MergeError`), it is not merged.

Weights can be right and the policy another one: tied embeddings are one matrix, so a change of the
embedding would change the LM head too, and a saved model may load other weights than it was given.
Every merged model is therefore loaded again, and its logits are compared with those of the adapter
over its base (`_Probe`).

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.config.base import EngineConfig
from pipeline.core.atomic import place
from pipeline.core.errors import ConfigError, EngineError, InputError, SteepError, model_problem
from pipeline.core.language_models import load_language_model
from pipeline.core.model_files import model_hash
from pipeline.llm.adapter_files import UNMERGED, adapter_settings, check_adapter, merge
from pipeline.llm.locate import locate
from pipeline.llm.tokenizer import model_tokenizer

_NAME = "merged-"
_VERSION = "2"  # raised when the same adapter gives another merged model
# Larger errors come from steps that are small for the grid of the dtype, such as GRPO at 1e-5.
MOST_LOST = 0.1
# Largest error of logits: a share of the adapter's own effect, by dtype, and units in the last
# place of the logits, because both passes round in each layer.
_EFFECT = {"float32": 1e-3, "float16": MOST_LOST, "bfloat16": 2 * MOST_LOST}
_UNITS = 16
_SEQUENCES, _TOKENS = 4, 16  # of a probe: a few seconds for a model of 7 billion weights


def merged_models(cache_dir: Path | str) -> Path:
    """The directory below ``cache_dir`` where the stages keep merged models."""
    return Path(cache_dir) / "merged"


def merged_key(base: Path | str, adapter: Path, dtype: str) -> str:
    """16 hexadecimal digits over the contents of base and adapter, and of `_VERSION`."""
    parts = (model_hash(locate(str(base), "model.base")), model_hash(adapter), dtype, _VERSION)
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
            if not free:
                continue
            _remove_interrupted(target)
            if target.is_dir():  # renamed first: a kill leaves no directory that looks complete
                target.replace(_unfinished(target))
                removed.append(target)
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
    temporary = _unfinished(target)
    temporary.mkdir(parents=True)
    try:
        save_merged(base, adapter, temporary, dtype)
        place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_merged(base: Path | str, adapter: Path, directory: Path, dtype: str) -> None:
    """Save base plus adapter in ``dtype``, and the base's tokenizer, to an existing directory.

    Raises InputError when the adapter does not match the base or changes nothing (`check_adapter`),
    ConfigError when ``dtype`` would lose much of the adapter.
    """
    import torch
    from peft import PeftModel

    def load(model: Path | str) -> Any:
        loaded = load_language_model(model, dtype=getattr(torch, dtype))
        if getattr(loaded, "is_quantized", False):
            loaded = loaded.dequantize()
            loaded._weight_conversions = None  # the quantizer's would refuse to save these weights
        return loaded

    try:
        check_adapter(adapter, base, merged=True)
        model = load(base)
        probe = _Probe(model, adapter_settings(adapter))
        # PEFT would load the adapter to a GPU, and leave a CUDA context beside the engine's share
        # of it.
        policy = PeftModel.from_pretrained(model, str(adapter), torch_device="cpu")
        probe.expect(policy)
        _untie(policy.get_base_model())
        lost = merge_and_measure(policy)
        lost.check(adapter, dtype)
        merged = merge(policy)
        merged.save_pretrained(directory)
        tokenizer: Any = model_tokenizer(base)
        tokenizer.save_pretrained(directory)
        del model, policy, merged  # one model at a time is in memory
        error = probe.check(load(directory), adapter, dtype)
        print(
            f"merged {adapter} in {dtype}: relative error {lost.relative:.1e}, "
            f"{lost.unchanged:.1%} of the entries unchanged; logits {error:.1e} of the adapter's "
            "effect"
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, ImportError) as error:
        if isinstance(error, SteepError):
            raise
        raise EngineError(
            f"adapter {adapter} could not be merged into {base}: {model_problem(error)}; "
            f"{UNMERGED}, or set model.base to the model that it was trained over"
        ) from error


def _untie(model: Any) -> None:
    """Give the LM head a weight of its own where LoRA changes one side of tied embeddings.

    A merge into one side would change both.
    """
    from peft.tuners.lora import LoraLayer
    from torch.nn import Parameter

    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (getattr(end, "base_layer", end) for end in ends)
    if any(isinstance(end, LoraLayer) for end in ends) and head.weight is embedding.weight:
        head.weight = Parameter(head.weight.detach().clone(), requires_grad=False)


class _Probe:
    """A comparison of a merged model with its unmerged policy, by logits of a few sequences.

    The sequences are random tokens, and the tokens that the adapter trains one by one. Outputs of
    the modules that the adapter changes are kept too, to name the first one that differs.
    """

    def __init__(self, base: Any, settings: Mapping[str, Any]) -> None:
        import torch

        config = base.config.get_text_config()
        length = min(_TOKENS, getattr(config, "max_position_embeddings", None) or _TOKENS)
        generator = torch.Generator().manual_seed(0)
        shape = (_SEQUENCES, length)
        self._ids = torch.randint(config.vocab_size, shape, generator=generator)
        trained = settings.get("trainable_token_indices") or []
        if isinstance(trained, dict):
            trained = [index for indices in trained.values() for index in indices]
        trained = trained[: self._ids.numel()]
        self._ids.view(-1)[: len(trained)] = torch.tensor(trained, dtype=torch.long)
        self._base, _ = self._run(base, ())

    def expect(self, policy: Any) -> None:
        """Take the logits of the adapter over its base."""
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        model = policy.get_base_model()
        names: list[str] = []
        for name, module in model.named_modules():
            inner = bool(names) and name.startswith(f"{names[-1]}.")
            if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inner:
                names.append(name)
        self._logits, self._outputs = self._run(model, names)

    def check(self, merged: Any, adapter: Path, dtype: str) -> float:
        """The error of the merged model's logits, as a share of the adapter's effect.

        Raises EngineError when it is larger than rounding explains.
        """
        import torch

        logits, outputs = self._run(merged, list(self._outputs))
        unit = _UNITS * torch.finfo(getattr(torch, dtype)).eps
        error, effect = _rms(logits - self._logits), _rms(self._logits - self._base)
        if error <= _EFFECT[dtype] * effect + unit * _rms(self._logits):
            return error / effect if effect else 0.0
        differing = [
            name
            for name, expected in self._outputs.items()
            if not _rms(outputs[name] - expected) <= 2 * unit * _rms(expected)
        ]
        raise EngineError(
            f"{adapter}: merged in {dtype} and loaded again, the model is not the trained policy: "
            f"its logits differ by {error:.2g} (root mean square), where the adapter changes them "
            f"by {effect:.2g}, first in the module {differing[0] if differing else 'lm_head'}; "
            f"{UNMERGED}, or train one without this target"
        )

    def _run(self, model: Any, names: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        """Logits [B, T, V] in float32, and the outputs of the named modules as they are used."""
        import torch

        outputs: dict[str, Any] = {}

        def kept(name: str) -> Any:
            def keep(module: Any, inputs: Any, output: Any) -> None:
                if isinstance(output, torch.Tensor):
                    outputs[name] = output

            return keep

        hooks = [model.get_submodule(name).register_forward_hook(kept(name)) for name in names]
        model.eval()
        with torch.inference_mode():
            logits = model(input_ids=self._ids, use_cache=False).logits.float()
        for hook in hooks:
            hook.remove()
        return logits, outputs


def _rms(values: Any) -> float:
    return float(values.float().square().mean().sqrt())


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


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _remove_interrupted(target: Path) -> None:
    """Remove the files of processes that merged or removed ``target``; its lock is held."""
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


def _weight(layer: Any) -> Any:
    """The base weight under a LoRA layer; experts of one module are one parameter of it."""
    own = layer.get_param() if hasattr(layer, "get_param") else layer.get_base_layer().weight
    return own.detach()


def merge_and_measure(policy: Any) -> MergeError:
    """Merge the adapter of a PEFT model into its base weights, layer by layer."""
    from peft.tuners.lora import LoraLayer

    squared_error = squared_delta = 0.0
    unchanged = changing = changed = 0
    for layer in policy.modules():
        if not isinstance(layer, LoraLayer):
            continue
        (name,) = layer.active_adapters
        before, delta = _weight(layer).clone(), layer.get_delta_weight(name).detach().float()
        layer.merge(safe_merge=True)
        after = _weight(layer)
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
