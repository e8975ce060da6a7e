"""Language models as GGUF files, which transformers neither saves nor trains: converted once.

Input: a GGUF file, as llama.cpp and its users publish quantized models. Output: a model directory
with the dequantized weights in bfloat16, the configuration and the tokenizer, in the assets of the
hub's cache (``HF_HOME``). A process of its own converts, because torch and transformers take 500 MB
and 4 CPU seconds that the caller may not need, and the file is foreign.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.atomic import place
from pipeline.core.errors import DependencyError, InputError, model_problem
from pipeline.core.language_models import load_language_model

SUFFIX = ".gguf"
_VERSION = "2"  # raised when the same file gives another directory


def converted(file: Path) -> Path:
    """The model directory of a GGUF file, made if it is missing.

    Its name depends on the path, the size and the time of the file. Writing ends with a rename, so
    an existing directory is complete; of two processes that convert at once the second takes the
    first one's. Raises DependencyError without the package gguf, InputError when the file cannot be
    read or holds no language model that transformers has.
    """
    from huggingface_hub import cached_assets_path

    status = file.stat()
    stamp = f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{_VERSION}"
    folder = cached_assets_path("steep", "models", "gguf")
    target = folder / f"{file.stem}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if target.is_dir():
        return target
    if find_spec("gguf") is None:
        raise DependencyError(f"{file} is a GGUF file, which needs its reader; pip install gguf")
    print(f"converting {file} to {target}, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder, ignore_cleanup_errors=True) as made:
        command = [sys.executable, "-m", __name__, str(file), made]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            problem = model_problem(done.stderr.strip().rpartition("\n")[2])
            raise InputError.at(file, f"the GGUF file cannot be converted: {problem}")
        try:
            Path(made).chmod(0o755)
            place(Path(made), target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def way(directory: Path, name: str) -> str:
    """How to name one of the GGUF files of a directory or hub repository; empty where it has none.

    The hub's own files of such a repository are not downloaded.
    """
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if files:
        return f"; it has GGUF files: name one, such as {files[0]}"
    if not name.upper().endswith("-GGUF"):
        return ""
    return f"; it has GGUF files: fetch one (hf download {name} FILE --local-dir .) and name it"


def _convert(file: Path, directory: Path) -> None:
    from gguf import GGUFReader

    # Raises for damaged files, before the imports that take seconds.
    parts = GGUFReader(file).fields.get("split.count")
    if parts is not None and (count := int(parts.contents())) > 1:
        raise ValueError(
            f"it is one of {count} parts; join them (llama-gguf-split --merge FIRST_PART WHOLE)"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_language_model(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    config = loaded.config
    del config.quantization_config
    # `save_pretrained` refuses a model that was dequantized.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    ).save_pretrained(directory)


if __name__ == "__main__":
    _convert(*map(Path, sys.argv[1:]))
