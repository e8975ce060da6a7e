"""Models: whether their files are on this machine, or can be fetched, and fit the settings.

Chat templates and the targets of LoRA are checked without transformers and PEFT, and once more with
these where something seems wrong: their import alone takes 4 CPU seconds and 500 MB, which the
process of a run would hold until its end.

`access_faults` asks the hub for the header of one small file of each model that must be fetched. It
does not ask for models in the cache, and with ``HF_HUB_OFFLINE`` it does not ask at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

from pipeline.config import Config, Lora
from pipeline.core import gguf
from pipeline.core.errors import SteepError, model_problem
from pipeline.core.input_files import read_json, read_text
from pipeline.core.model_files import (
    TORCH_WEIGHTS,
    is_hub_name,
    is_offline,
    local_directory,
)
from pipeline.core.model_shapes import CONFIG, shape_of
from pipeline.core.records import Message
from pipeline.engine.context import policy_format
from pipeline.engine.opened import Encoder, Engine, Opened, Training
from pipeline.llm.locate import locate
from pipeline.llm.tokenizer import model_tokenizer, read_template
from pipeline.llm.tokens import prompt_text

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SECONDS = 10.0  # for one answer of the hub
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def model_faults(settings: Config, opened: Iterable[Opened], *, here: bool = True) -> Iterator[str]:
    """A sentence for each model that is missing, incomplete or has no chat template.

    With ``here`` false the run is for another machine, and missing models are accepted.
    """
    for model in _models(opened):
        directory = local_directory(model.name)
        if directory is None:
            if here or not is_hub_name(model.name):
                yield from _missing(model)
            continue
        try:
            faults = list(_incomplete(model, directory))
            if not isinstance(model, Encoder):
                faults += _template(settings, model, directory)
            yield from faults
            if not faults and isinstance(model, Training):
                yield from _targets(settings.lora, directory)
        except SteepError as error:
            yield f"{model.key}: {error}"


def downloads(opened: Iterable[Opened]) -> list[tuple[str, float | None]]:
    """Models that the run fetches from the hub, with their bytes in 16 bit (None: unknown)."""
    missing = (one.name for one in _models(opened) if local_directory(one.name) is None)
    shapes = {name: shape_of(name) for name in missing}
    return [(name, 2.0 * shape.parameters if shape else None) for name, shape in shapes.items()]


def _missing(model: Opened) -> Iterator[str]:
    if is_offline() or not is_hub_name(model.name):
        try:
            locate(model.name, model.key)
        except SteepError as error:
            yield str(error)


def _incomplete(model: Opened, directory: Path) -> Iterator[str]:
    where = f"{model.key}: {directory}"
    again = "copy the model again"
    if is_hub_name(model.name) and not Path(model.name).is_dir():
        again = f"run hf download {model.name}"
    if not (directory / CONFIG).is_file() and not (directory / "modules.json").is_file():
        yield f"{where} has no {CONFIG}{gguf.way(directory, model.name) or f'; {again}'}"
    # Of a repository with the weights in both formats, only safetensors may be here; they are read.
    kept = _INDEXES[: 1 if any(directory.glob("*.safetensors")) else None]
    for name in (name for name in kept if (directory / name).is_file()):
        needed = read_json(directory / name).get("weight_map")
        if not isinstance(needed, dict) or not needed:
            yield f"{where}: {name} names no file of weights; {again}"
            continue
        files = {str(file) for file in needed.values()}
        if missing := sorted(file for file in files if not (directory / file).is_file()):
            more = "" if len(missing) == 1 else f" and {len(missing) - 1} more files"
            yield f"{where} lacks {missing[0]}{more}, which {name} names; {again}"
    paths = (
        directory.rglob("*")
        if isinstance(model, Encoder) and not model.reranks
        else directory.iterdir()
    )
    if not any(path.suffix in TORCH_WEIGHTS and path.is_file() for path in paths):
        yield f"{where} has no weights ({', '.join(TORCH_WEIGHTS[:2])}); {again}"
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        yield f"{where} has no tokenizer (expected one of {', '.join(_TOKENIZERS)}); {again}"


def _template(settings: Config, model: Opened, directory: Path) -> Iterator[str]:
    """Whether a language model has a chat template that writes the messages it will be asked.

    For the base model the settings may name another one.
    """
    is_policy = model.key == "model.base"
    if is_policy:
        template_note(settings, directory)
    own = settings.model.chat_template if is_policy else None
    setting = "set model.chat_template" if is_policy else "name an instruct model"
    try:
        template = read_template(own) if own is not None else _own_template(directory)
        if template is None:
            yield f"{model.key}: {directory} has no chat template (chat_template.jinja); {setting}"
        elif not _writes(template, probe := _probe(settings, model)):
            prompt_text(model_tokenizer(directory, own), probe)
    except SteepError as error:
        yield f"{model.key if own is None else 'model.chat_template'}: {error}"


def _own_template(directory: Path) -> str | None:
    """The chat template in the files of a model; empty where it is none of one text."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    file = directory / "tokenizer_config.json"
    found = read_json(file).get("chat_template") if file.is_file() else None
    return found if isinstance(found, str) else "" if found else None


def _probe(settings: Config, model: Opened) -> list[Message]:
    """Messages of the roles that a stage sends to a language model."""
    if model.key == "model.base":
        return settings.prompt.messages("Who founded it?")
    asked = [Message("system", "Answer the question."), Message("user", "Who founded it?")]
    if model.block.startswith(("graph", "hypergraph")):  # an example stands before the text
        asked += [Message("assistant", "Ada Lovell."), Message("user", "And who sold it?")]
    return asked


def _writes(template: str, messages: Sequence[Message]) -> bool:
    """Whether a template writes all messages; False where only transformers can tell."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(problem: str) -> NoReturn:
        raise TemplateError(problem)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=refuse, strftime_now=datetime.now().strftime)
    try:
        text = environment.from_string(template).render(
            messages=[asdict(message) for message in messages], add_generation_prompt=True
        )
    except Exception:  # noqa: BLE001 - a template is a program, and may raise anything
        return False
    return all(message.content.strip() in text for message in messages)


def _targets(lora: Lora, base: Path) -> Iterator[str]:
    """A sentence unless training can adapt all ``lora.targets``."""
    # The output embeddings, which cannot be trained, are in no numbered layer.
    inner = [
        f".{name}"
        for file in base.glob("*.safetensors")
        for name, shape in _shapes(file).items()
        if len(shape) == 2 and re.search(r"\.[0-9]+\.", name)
    ]
    if all(any(name.endswith(f".{target}.weight") for name in inner) for target in lora.targets):
        return
    from pipeline.training.lora import check_targets

    try:
        check_targets(base, lora)
    except SteepError as error:
        yield str(error)


def _shapes(file: Path) -> dict[str, Sequence[int]]:
    """The shapes of the tensors in a safetensors file; empty if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            names = tensors.keys()
            return {name: tensors.get_slice(name).get_shape() for name in names}
    except SafetensorError:
        return {}


def template_note(settings: Config, directory: Path) -> str:
    """How the policy's chat template rewrites earlier turns of conversations, else empty.

    Raises InputError for a template without tools, where the format calls some.
    """
    open_tokenizer = partial(model_tokenizer, directory, settings.model.chat_template)
    return policy_format(settings).template_note(open_tokenizer)


def template_notes(settings: Config) -> Iterator[str]:
    """A sentence where the policy's chat template rewrites earlier turns."""
    directory = local_directory(settings.model.base)
    if directory is not None and (note := template_note(settings, directory)):
        yield f"model.base: {note}"


def fit_faults(opened: Iterable[Opened]) -> Iterator[str]:
    """A sentence for each setting that the shape of its model does not allow."""
    for model in opened:
        if isinstance(model, Engine):
            key, tokens = f"{model.block}.max_model_len", model.settings.max_model_len
        elif isinstance(model, Encoder):
            key, tokens = f"{model.block}.max_length", model.settings.max_length
            if not model.name:
                kind = getattr(model.settings, "kind", "")
                yield f"{model.block}.kind is {kind}, which needs {model.key}; name a model"
        else:
            continue
        shape = shape_of(model.name) if model.name else None
        if shape is not None and tokens > shape.positions:
            yield f"{key} is {tokens}, and {model.name} has {shape.positions} positions; lower it"


def _models(opened: Iterable[Opened]) -> Iterator[Opened]:
    """The models in ``opened`` that have a name."""
    return (one for one in opened if one.is_model and one.name)


def access_faults(opened: Iterable[Opened]) -> Iterator[str]:
    """A sentence for each model that the hub refuses to this machine, or an unreachable hub."""
    keys = {model.name: model.key for model in opened if model.is_model and is_hub_name(model.name)}
    missing = [name for name in keys if local_directory(name) is None]
    if is_offline() or not missing:
        return  # `model_faults` names the missing models
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    for name in missing:
        try:
            get_hf_file_metadata(hf_hub_url(name, CONFIG), timeout=_SECONDS)
        except EntryNotFoundError:  # `CONFIG` is in a subfolder
            continue
        except Exception as error:  # noqa: BLE001 - many types, which all mean that it cannot be fetched
            yield (
                f"{keys[name]}: {name} is not in the cache of the hub, and the hub does not give "
                f"it ({type(error).__name__}: {model_problem(error)}); correct the name; accept "
                f"its licence at https://huggingface.co/{name} and log in (hf auth login, or "
                f"HF_TOKEN); run hf download {name} where there is a network; or name a directory"
            )
            if not isinstance(error, HfHubHTTPError):
                return  # no hub is reached, and the others would wait as long
