"""Load a model, optionally with a LoRA adapter, into the configured engine.

Input: the settings of an engine, a model directory or hub name, and the directory of an adapter.
Output: an `Engine` of vLLM or transformers.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config.base import EngineConfig
from pipeline.llm.adapter_files import check_engine
from pipeline.llm.engine import Engine
from pipeline.llm.locate import locate


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

    Raises DependencyError when the engine's package or the model is missing (`locate`), InputError
    for an adapter that would not change the model as its files say (`check_adapter`), ConfigError
    for an adapter that merging would blur, and EngineError when the model cannot be loaded.
    """
    assert config.dtype != "auto"  # `pipeline.config.machine_choices` has replaced it
    model = locate(str(model), key)
    if adapter is not None:
        check_engine(adapter, config)  # before the engine's packages are imported
    if config.kind == "vllm":
        from pipeline.llm.vllm_engine import VllmEngine

        return VllmEngine(config, model, adapter=adapter, seed=seed, workspace=workspace)
    from pipeline.llm.transformers_engine import TransformersEngine

    return TransformersEngine(config, model, adapter=adapter, workspace=workspace)
