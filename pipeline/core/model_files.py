"""The files of models and policies: their paths, and the hash of their contents.

All keys that depend on a model (fingerprints of stages, cached embeddings and scores, a policy's
lineage, a merged model) use this hash, so they all detect the same changes. It covers names and
contents of the files and not the location of the directory. Input: a model as a configuration names
it (a directory, a hub name, or ``package:NAME``), or the directory of a model, an adapter or a
policy (``adapter/``, and ``lineage.json``, which names it and its origin). Nothing is loaded, and
no network is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.core import gguf
from pipeline.core.errors import InputError, Place
from pipeline.core.input_files import read_json
from pipeline.core.shipped import ROOT
from pipeline.core.text import file_name

PACKAGE = "package:"
TORCH_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
# Weights, configurations, vocabularies, chat templates and code. Other files, such as README and
# logs, do not change the output of a model.
_SUFFIXES = frozenset({*TORCH_WEIGHTS, ".json", ".txt", ".model", ".tiktoken", ".jinja", ".py"})
TEMPLATES = "additional_chat_templates"


def model_files(directory: Path) -> list[Path]:
    """The files that decide the output of a model, sorted by name.

    For a sentence-transformers model (``modules.json``) these are files in any subdirectory. For
    other models they are the files of the directory itself and chat templates, because language
    models have training states and copies in other layouts in further subdirectories. Hidden files
    are ignored.
    """
    paths: Iterable[Path] = directory.rglob("*")
    if not (directory / "modules.json").is_file():
        folders = (directory, directory / TEMPLATES)
        paths = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    names = {path.relative_to(directory).as_posix(): path for path in paths}
    return [
        path
        for name, path in sorted(names.items())
        if path.suffix in _SUFFIXES
        and not any(part.startswith(".") for part in name.split("/"))
        and path.is_file()
    ]


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a file's content."""
    return sha256(path)[:16]


def model_hash(directory: Path, hash_of: Callable[[Path], str] = file_hash) -> str:
    """A hash of 16 hexadecimal digits over the names and contents of a model's or adapter's files.

    ``hash_of`` returns a file's hash, as `file_hash` does; `core.content_hashes.ContentHashes`
    passes a cached one.
    """
    digest = hashlib.sha256()
    for path in model_files(directory):
        name = file_name(path.relative_to(directory).as_posix())
        digest.update(f"{name}\0{hash_of(path)}\n".encode())
    return digest.hexdigest()[:16]


def find_model(name: Path | str) -> Path | str:
    """The directory of the model ``name``, if it is in steep, a package or a GGUF file.

    ``data/tiny_reader`` names the shipped tiny reader unless the current directory has a
    ``data/tiny_reader``; ``package:NAME`` the model in an installed package. A GGUF file is
    converted once. Names of other models are returned unchanged. Raises what `gguf.converted` does.
    """
    if str(name).startswith(PACKAGE):
        return _in_package(str(name).removeprefix(PACKAGE)) or name
    path = Path(name)
    if path.suffix == gguf.SUFFIX and path.is_file():
        return gguf.converted(path)
    shipped = ROOT / path
    if path.parts[:1] != ("data",) or ".." in path.parts or path.exists() or not shipped.is_dir():
        return name
    return shipped


def _in_package(package: str) -> Path | None:
    """The directory of the first model in an installed package, which may be a GGUF file."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    for pattern in ("modules.json", "config.json", f"*{gguf.SUFFIX}"):
        found = Path(spec.origin).parent.rglob(pattern)
        if file := min(found, key=lambda path: (len(path.parts), path), default=None):
            return gguf.converted(file) if file.suffix == gguf.SUFFIX else file.parent
    return None


def is_hub_name(name: str) -> bool:
    """Whether a name can only name a model on the hub: owner/model."""
    return not Path(name).is_absolute() and not name.startswith((".", "~")) and name.count("/") == 1


def is_offline() -> bool:
    """Whether an environment variable forbids downloads from the hub."""
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def local_directory(name: str) -> Path | None:
    """The directory of a model: as `find_model` has it, or in the cache of the hub.

    The files in it may be incomplete.
    """
    path = Path(find_model(name))
    if path.is_dir():
        return path
    return _cached(name) if is_hub_name(name) else None


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
        return None


LINEAGE = "lineage.json"
ADAPTER_SETTINGS = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
UNTRAINED = "untrained"  # the method in the lineage of the base model, which has no adapter


def adapter_directory(directory: Path) -> Path:
    """The adapter in a policy's directory; for a bare adapter of PEFT the directory itself."""
    return directory if (directory / ADAPTER_SETTINGS).is_file() else directory / "adapter"


def lineage_fields(directory: Path) -> dict[str, Any]:
    """The content of ``lineage.json``, which names at least the ``policy``.

    Raises InputError when the file is missing, malformed, or names no policy.
    """
    path = directory / LINEAGE
    with Place(path):
        if not path.exists():
            raise InputError("no such file, so the directory holds no policy; train it again")
        fields: dict[str, Any] = read_json(path)
        if not isinstance(fields.get("policy"), str):
            raise InputError("malformed lineage of a policy: it names no policy")
    return fields
