"""Load a model, optionally with a LoRA adapter, into the configured engine.

Input: the settings of an engine, a model directory or hub name, and the directory of an adapter.
Output: an `Engine` of vLLM or transformers.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config.base import EngineConfig
from pipeline.core import gguf
from pipeline.core.errors import InputError
from pipeline.core.model_files import TORCH_WEIGHTS, find_model, is_hub_name
from pipeline.llm.adapter_files import check_engine
from pipeline.llm.engine import Engine


def open_engine(
    config: EngineConfig,
    model: Path | str,
    *,
    adapter: Path | None,
    seed: int,
    workspace: Path | None = None,
    key: str = "model.base",
) -> Engine:
    """Load a model, optionally with a LoRA adapter, into the configured engine.

    ``adapter`` is a PEFT directory. With ``adapters: merged`` it is merged into the base below
    ``workspace``, where engines of the same policy share the merged model; None uses a temporary
    directory that is deleted with the engine. ``key`` is the configuration key of the model's name,
    for error messages.

    Raises InputError for a model directory without weights and for an adapter that would not change
    the model as its files say (`check_adapter`), DependencyError when the engine's package is
    missing, ConfigError for an adapter that merging would blur, and
    EngineError when the model cannot be loaded.
    """
    assert config.dtype != "auto"  # `pipeline.config.machine_choices` has replaced it
    model = find_model(model)
    check_model(model, key)
    if adapter is not None:
        check_engine(adapter, config)  # before the engine's packages are imported
    if config.kind == "vllm":
        from pipeline.llm.vllm_engine import VllmEngine

        return VllmEngine(config, model, adapter=adapter, seed=seed, workspace=workspace)
    from pipeline.llm.transformers_engine import TransformersEngine

    return TransformersEngine(config, model, adapter=adapter, workspace=workspace)


def check_model(model: Path | str, key: str = "model.base") -> None:
    """Check that a local model directory holds a configuration and weights.

    A name such as ``organization/model`` that is not a local directory is resolved by the model hub
    later. ``key`` is the configuration key of the name. Raises InputError for an incomplete or
    missing directory.
    """
    directory = Path(model)
    if not directory.is_dir():
        local = isinstance(model, Path) or not is_hub_name(model) or directory.parent.is_dir()
        if local:
            raise InputError(f"{model}: no such model directory; correct {key}")
        return
    if not (directory / "config.json").is_file():
        raise InputError(
            f"{directory} has no config.json, so it is not a model directory"
            f"{gguf.way(directory, str(model)) or f'; correct {key}'}"
        )
    if not any(path.suffix in TORCH_WEIGHTS for path in directory.iterdir()):
        raise InputError(
            f"{directory} has no weights (expected model.safetensors); download it, or point "
            f"{key} at a complete directory"
        )
