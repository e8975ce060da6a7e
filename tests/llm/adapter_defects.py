"""Generated adapters and chat templates that are damaged, or that would not do what they seem to.

An adapter would leave the base model as it is, or cannot be loaded; a template fails or drops a message.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Defect:
    """``change`` is given the settings and the tensors of a whole adapter."""

    name: str
    change: Callable[[dict[str, Any], Tensors], object]

    def write(self, adapter: Path, directory: Path) -> Path:
        """Copy an adapter with the defect."""
        from safetensors.torch import load_file, save_file

        directory.mkdir(parents=True)
        settings = json.loads((adapter / SETTINGS).read_text())
        tensors = load_file(adapter / WEIGHTS)
        self.change(settings, tensors)
        (directory / SETTINGS).write_text(json.dumps(settings))
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, directory / WEIGHTS
        )
        return directory


def _renamed(old: str, new: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def _dropped(part: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return change


def _mapped(
    function: Callable[[Any], Any], part: str = ""
) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            tensors[name] = function(tensors[name])

    return change


def _foreign(settings: dict[str, Any], tensors: Tensors) -> None:
    tensors["base_model.model.lm_head2.lora_A.weight"] = next(iter(tensors.values())).clone()


def _first(function: Callable[[Any], Any]) -> Callable[[dict[str, Any], Tensors], None]:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        name = min(tensors)
        tensors[name] = function(tensors[name])

    return change


def _to(dtype: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        import torch

        return value.to(getattr(torch, dtype))

    return convert


# These leave a policy equal to the base model, or only a part of the adapter, without a word of PEFT.
IGNORED = (
    Defect("names without the prefix", _renamed("base_model.model.", "")),
    Defect("names of the inner model", _renamed("base_model.model.model.", "base_model.model.")),
    Defect("names of another model", _renamed("self_attn", "attention")),
    Defect("a foreign tensor", _foreign),
    Defect("no tensor", lambda settings, tensors: tensors.clear()),
    Defect("one layer only", _dropped("layers.1.")),
    Defect("no lora_A", _dropped("lora_A")),
    Defect("no lora_B", _dropped("lora_B")),
    Defect("one module only", _dropped("q_proj")),
    Defect("lora_alpha 0", lambda settings, tensors: settings.update(lora_alpha=0)),
    Defect(
        "alpha_pattern 0",
        lambda settings, tensors: settings.update(alpha_pattern={"q_proj": 0, "v_proj": 0}),
    ),
    Defect("untrained", _mapped(lambda value: value * 0, "lora_B")),
    Defect("zeros in bfloat16", _mapped(lambda value: _to("bfloat16")(value * 0))),
    Defect("NaN", _first(lambda value: value * float("nan"))),
    Defect("infinity in bfloat16", _mapped(lambda value: _to("bfloat16")(value / 0))),
)
BROKEN = (
    Defect("0-D", _first(lambda value: value.sum())),
    Defect("1-D", _first(lambda value: value.flatten())),
    Defect("all 1-D", _mapped(lambda value: value.flatten())),
    Defect("transposed", _mapped(lambda value: value.T.contiguous())),
    Defect("float8", _mapped(_to("float8_e4m3fn"))),
    Defect("int8", _mapped(_to("int8"))),
    Defect("bool", _first(_to("bool"))),
    Defect("another rank", lambda settings, tensors: settings.update(r=3)),
    Defect("empty tensors", _mapped(lambda value: value[:0])),
)

VALUES = (
    None,
    True,
    0,
    -1,
    1,
    2.5,
    1e300,
    2**62,
    "",
    "q_proj",
    "(",
    [],
    [0],
    [""],
    ["q_proj"],
    {},
    {"a": 1},
)


def cases(seed: int, count: int) -> Iterator[Defect]:
    """The defects above, then one or two random ones together, with random values of settings."""
    chance = random.Random(seed)
    known = [*IGNORED, *BROKEN]
    for number in range(count):
        if number < len(known):
            yield known[number]
            continue
        chosen = chance.sample(known, chance.randrange(3))
        fields = {
            chance.choice(FIELDS): chance.choice(VALUES) for _ in range(chance.randrange(1, 3))
        }
        yield _together(chosen, fields)


FIELDS = (
    "r", "lora_alpha", "target_modules", "peft_type", "task_type", "base_model_name_or_path", "bias",
    "rank_pattern", "alpha_pattern", "use_dora", "use_rslora", "fan_in_fan_out", "modules_to_save",
    "layers_to_transform", "layers_pattern", "exclude_modules", "init_lora_weights", "lora_dropout",
    "inference_mode", "auto_mapping", "revision", "megatron_config", "loftq_config", "target_parameters",
)  # fmt: skip


def _together(chosen: list[Defect], fields: dict[str, Any]) -> Defect:
    def change(settings: dict[str, Any], tensors: Tensors) -> None:
        for defect in chosen:
            if tensors:
                defect.change(settings, tensors)
        settings.update(fields)

    return Defect(" and ".join([*(defect.name for defect in chosen), repr(fields)]), change)


def damaged_files(adapter: Path, directory: Path, chance: random.Random) -> Path:
    """A copy with bytes of one file cut or changed."""
    shutil.copytree(adapter, directory)
    path = directory / chance.choice([SETTINGS, WEIGHTS])
    content = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        del content[chance.randrange(len(content)) :]
    for _ in range(chance.randrange(4)):
        if content:
            content[chance.randrange(min(len(content), 600))] = chance.randrange(256)
    path.write_bytes(content)
    return directory


TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FRAGMENTS = (
    "{{", "}}", "{%", "%}", "{% endfor %}", "{% if %}", "{{ 1 / 0 }}", "{{ messages[9].content }}",
    "{{ raise_exception('no') }}", "{% include 'x' %}", "{{ ''.__class__.__mro__ }}", "{{ none.x.y }}",
    "{% for i in range(10**9) %}{% endfor %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set messages = [] %}", "{{ messages | tojson }}", "\x00", "é", "{# ", "{% break %}", "|", "\n",
)  # fmt: skip


def template_bytes(chance: random.Random) -> bytes:
    """A template with fragments put in, parts cut out, or bytes changed."""
    text = TEMPLATE
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        if chance.random() < 0.6:
            text = text[:at] + chance.choice(FRAGMENTS) + text[at:]
        else:
            text = text[:at] + text[at + chance.randrange(40) :]
    content = bytearray(text.encode())
    if content and chance.random() < 0.1:
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def problems(seed: int, count: int, folder: Path) -> Iterator[str | None]:
    """For each of ``count`` adapters and templates, None, or how it was taken wrongly."""
    from tests.llm.small_models import small_adapter, small_model

    model = small_model(folder / "model")
    adapter = small_adapter(model, folder / "adapter")
    chance = random.Random(seed)
    for number, defect in enumerate(cases(seed, count - count // 2)):
        directory = folder / "cases" / str(number)
        if number % 4 == 3:
            damaged_files(adapter, directory, chance)
        else:
            defect.write(adapter, directory)
        problem = _problem(lambda directory=directory: _enter(directory, model, folder))
        yield problem and f"adapter with {defect.name}: {problem}"
    for number in range(count // 2):
        file = folder / f"{number}.jinja"
        file.write_bytes(template_bytes(chance))
        problem = _problem(lambda file=file: _render(model, file))
        yield problem and f"template {file.read_bytes()!r}: {problem}"


def _problem(call: Callable[[], object]) -> str | None:
    from pipeline.core.errors import SteepError

    try:
        call()
    except SteepError as error:
        return f"several lines: {error}" if "\n" in str(error) else None
    except Exception as error:  # noqa: BLE001 - the crash is what is looked for
        return f"{type(error).__name__}: {error}"
    return None


def _enter(adapter: Path, model: Path, folder: Path) -> None:
    """Every check that an adapter passes on its way into an evaluation or a training."""
    from pipeline.config import Lora
    from pipeline.llm.adapter_files import check_adapter
    from pipeline.training.lineage import checked_policy
    from pipeline.training.lora import check_shape
    from tests.stages.fabricated_run import configuration

    config = configuration()
    values = config.model_dump() | {"model": {"base": str(model)}, "runs_dir": str(folder / "runs")}
    settings = type(config).model_validate(values)
    checked_policy(adapter, settings.model.base, settings.hashes_file)
    check_adapter(adapter, model)
    check_shape(adapter, Lora(r=8, alpha=32, targets=("q_proj", "v_proj")))


def _render(model: Path, template: Path) -> None:
    from pipeline.core.records import Message
    from pipeline.grammars.tokenizer import model_tokenizer
    from pipeline.grammars.tokens import prompt_text

    messages = [Message("system", "Search."), Message("user", "Who founded it?")]
    text = prompt_text(model_tokenizer(model, str(template)), messages)
    assert "Who founded it?" in text
