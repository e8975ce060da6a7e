"""Types of settings (numbers, lists, texts, addresses), the base of blocks, and shared blocks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from pipeline.config.yaml_files import shown_key
from pipeline.core.input_files import leaves
from pipeline.core.text import without_keys

# Every numeric field has a lower and an upper bound. The upper bounds are far above all useful
# values; they keep counts within 32 bits, and loops over rounds, shards and processes finite.
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Few = Annotated[int, Field(ge=1, le=1000)]  # of processes, devices and rounds
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Above0 = Annotated[float, Field(gt=0, le=1e6)]
Temperature = Annotated[float, Field(ge=0, le=100)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Epochs = Annotated[float, Field(gt=0, le=10_000)]

_PRIVATE = (".local", ".localhost", ".internal", ".intranet", ".lan", ".home.arpa")

NotEmpty = Annotated[str, Field(min_length=1)]
Item = TypeVar("Item")
# Blocks are strict: true and "3" are refused as numbers. Tuples are not strict, because YAML and
# JSON have only lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
AtLeastOne = Annotated[tuple[Item, ...], Field(strict=False, min_length=1)]
# A path, or the name of a model, which may be a path.
PathOrName = Annotated[str, Field(min_length=1, max_length=1000)]


def with_numbers_as_keys(value: object, kind: str) -> object:
    """A mapping with whole numbers as keys (texts in JSON); messages call a key ``kind``."""
    if not isinstance(value, dict):
        return value
    keys = [int(key) if re.fullmatch(r"[1-9]\d{0,3}", str(key)) else key for key in value]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{kind} is there twice, in quotes and without; remove one")
    return dict(zip(keys, value.values(), strict=True))


def _hops_as_keys(value: object) -> object:
    return with_numbers_as_keys(value, "a number of hops")


Hops = Annotated[int, Field(ge=1, le=99)]
SizesByHops = Annotated[dict[Hops, Count], BeforeValidator(_hops_as_keys)]

KEY_REMEDY = "put the key into an environment variable and name that variable in api_key_env"
_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def check_texts(value: Any) -> None:
    """Raise ValueError for control characters, lone surrogates and API keys in nested values."""
    if isinstance(value, str) and (found := _CONTROL.search(value)):
        raise ValueError(f"the text holds the character U+{ord(found[0]):04X}; remove it")
    if isinstance(value, str) and without_keys(value) != value:
        raise ValueError(f"the text looks like an API key; {KEY_REMEDY}")
    if isinstance(value, dict):
        check_texts((*value, *value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            check_texts(item)


def check_address(value: str, example: str, remedy: str) -> str:
    """The address. Raises ValueError, which does not show it, unless it is only host and path."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or the IPv6 address is incomplete
        usable = False
    if not usable or re.search(r"[\s\\]", value):
        raise ValueError(f"expected an address such as {example}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(f"the address has more than host and path; {remedy}")
    return value


def _api_address(value: str) -> str:
    return check_address(value, "http://localhost:8000/v1", KEY_REMEDY)


def shown(value: object) -> str:
    """A value for messages, as YAML writes it: one line, at most about 60 characters.

    Mappings and lists are named by their kind.
    """
    if isinstance(value, dict | list | tuple):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Execution:
    """Marks a field that changes how work is executed and not its result.

    Such a field is left out of fingerprints and cache keys. The manifest of a stage records it.
    """


@dataclass(frozen=True)
class Indirect:
    """Marks a field that fingerprints leave out because they hold the content that it names.

    ``model.base`` and ``data.root`` name files, and fingerprints hold the content of these files.
    """


class Block(BaseModel):
    """Base of every block: immutable; refuses unknown keys, other types, NaN and infinity.

    Values are not converted: true and numbers in quotes are not accepted as numbers, and 3.0 is not
    accepted as a whole number. The exception is a float field, which accepts whole numbers. Texts
    hold no control characters except tabs and line breaks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        check_texts(value)
        return value

    @classmethod
    @cache
    def marked(cls, mark: type) -> frozenset[str]:
        """The names of the fields with a mark, such as `Execution`."""
        return frozenset(
            name
            for name, info in cls.model_fields.items()
            if any(isinstance(found, mark) for found in info.metadata)
        )

    def deciding(self, *names: str) -> dict[str, Any]:
        """The settings that decide results, as JSON values, for fingerprints.

        Leaves out `Execution` and `Indirect` fields at any depth. ``names`` limit them to these
        fields.
        """
        chosen = (set(names) or type(self).model_fields.keys()) - self.marked(Execution)
        chosen -= self.marked(Indirect)
        dumped = self.model_dump(mode="json", include=chosen)
        values = {name: getattr(self, name) for name in dumped}
        return {
            name: value.deciding() if isinstance(value, Block) else dumped[name]
            for name, value in values.items()
        }


def execution_values(block: Block) -> dict[str, Any]:
    """The settings of a block that say how work is executed, as JSON values by dotted name."""
    values: dict[str, Any] = {}
    dumped = block.model_dump(mode="json")
    for name in type(block).model_fields:
        below = getattr(block, name)
        if name in block.marked(Execution):
            values |= dict(leaves(dumped[name], name))
        elif isinstance(below, Block):
            values |= {f"{name}.{key}": value for key, value in execution_values(below).items()}
    return values


class EngineConfig(Block):
    """A language-model engine that runs in the process of its stage."""

    kind: Literal["vllm", "transformers"] = Field("vllm", description="the library that generates")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "bfloat16",
        description="number format of weights and activations; auto: bfloat16 on GPUs and on AMD's "
        "CPUs with AVX-512, else float32",
    )
    max_model_len: Positive = Field(4096, description="tokens of prompt and output together")
    max_num_seqs: Annotated[Positive, Execution()] = Field(
        256, description="sequences decoded at once"
    )
    gpu_memory_utilization: Annotated[float, Execution()] = Field(
        0.9, gt=0, le=1, description="vllm: share of the GPU's memory to use"
    )
    cpu_kv_cache_gib: Annotated[Few, Execution()] = Field(
        2, description="vllm on CPUs: size of the KV cache in GiB"
    )
    tensor_parallel_size: Annotated[Few, Execution()] = Field(
        1, description="vllm: GPUs that share one model"
    )
    enforce_eager: Annotated[bool, Execution()] = Field(
        False, description="vllm: run without CUDA graphs and compilation"
    )
    adapters: Literal["merged", "loaded"] = Field(
        "merged",
        description="merged: LoRA adapters are added to the weights, or stay separate if rounding "
        "to 16 bit would lose more than a tenth of one; loaded: they stay separate",
    )


def is_public(url: str) -> bool:
    """Whether an address is neither of this machine nor of a private network."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE)


class Prices(Block):
    """Prices of an endpoint per million tokens in any one currency, for costs and their ceiling."""

    prompt: Weight = Field(0.0, description="price of a million tokens in requests")
    completion: Weight = Field(0.0, description="price of a million tokens in answers")


class Endpoint(Block):
    """A chat model behind an OpenAI-compatible HTTP endpoint (a vLLM server, for example)."""

    base_url: Annotated[str, AfterValidator(_api_address)] = Field(
        description="address without /chat/completions; usually ends in /v1"
    )
    model: PathOrName = Field(description="name of the model at the endpoint")
    api_key_env: Annotated[str | None, Execution()] = Field(
        None, description="environment variable with the API key; null sends no key"
    )
    temperature: Temperature | None = Field(
        0.0, description="temperature of requests; null: not sent, for models that refuse it"
    )
    limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="name of the parameter that limits the tokens of an answer"
    )
    thinking_tokens: Count = Field(
        0, description="tokens added to every limit, for reasoning models"
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="further fields of every request, which are recorded: name no secrets",
    )
    concurrency: Annotated[Few, Execution()] = Field(16, description="concurrent requests")
    requests_per_minute: Annotated[Positive | None, Execution()] = Field(
        None, description="maximum requests per minute; null: no limit"
    )
    timeout: Annotated[Seconds, Execution()] = Field(
        120.0, description="seconds without a byte of the reply after which an attempt fails"
    )
    total_timeout: Annotated[Seconds | None, Execution()] = Field(
        None,
        description="seconds for a whole reply, after which an attempt fails; null: ten times "
        "timeout",
    )
    retries: Annotated[int, Execution()] = Field(
        8, ge=0, le=1000, description="retries after 429, 5xx, timeouts and broken connections"
    )
    prices: Annotated[Prices, Execution()] = Field(
        Prices(), description="prices per million tokens"
    )
    cost_ceiling: Annotated[float | None, Execution()] = Field(
        None,
        gt=0,
        le=1e9,
        description="a stage stops once its new replies cost this much; needs prices",
    )
    token_ceiling: Annotated[Positive | None, Execution()] = Field(
        None, description="a stage stops once its new replies took this many tokens"
    )

    @property
    def unbounded(self) -> bool:
        """Whether it may cost money and has no ceiling.

        It may cost money when it has prices, or when its address is public.
        """
        paid = self.prices.prompt or self.prices.completion or is_public(self.base_url)
        return bool(paid) and not (self.cost_ceiling or self.token_ceiling)

    @property
    def longest_seconds(self) -> float:
        """Seconds for a whole reply."""
        return self.total_timeout or 10 * self.timeout

    # The messages below never contain the value, which may be an API key in the wrong place.
    @model_validator(mode="after")
    def _ceiling_has_prices(self) -> Endpoint:
        if self.cost_ceiling is not None and not (self.prices.prompt or self.prices.completion):
            raise ValueError("cost_ceiling needs prices; set them, or use token_ceiling")
        return self

    @field_validator("api_key_env")
    @classmethod
    def _variable_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise ValueError(
                "expected the name of an environment variable in capitals (such as "
                "OPENAI_API_KEY), never the key itself"
            )
        return value

    @field_validator("extra")
    @classmethod
    def _no_fields_of_the_client(cls, value: dict[str, Any]) -> dict[str, Any]:
        of_the_client = {"model", "messages", "temperature", "n", "stream", "max_tokens"}
        conflicts = sorted(value.keys() & (of_the_client | {"max_completion_tokens"}))
        if conflicts:
            raise ValueError(
                f"{', '.join(conflicts)} cannot be set here; use the other settings of the endpoint"
            )
        if (name := _name_of_a_secret(value)) is not None:
            raise ValueError(f"{name} holds a secret, and extra is recorded; {KEY_REMEDY}")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                "expected JSON values with finite numbers, because every request holds them"
            ) from None
        return value


_SECRET_NAME = re.compile(
    r"(.*(api|access|secret|private)key|key|.*(secret|password|passwd|credentials?)|bearer|cookie"
    r"|(proxy)?auth(orization)?|((api|access|auth|session|bearer|id|refresh|x)*token))"
)


def _name_of_a_secret(value: Any) -> str | None:
    """A name of a field in nested JSON values under which services expect a secret."""
    if isinstance(value, dict):
        for name in value:
            if _SECRET_NAME.fullmatch(re.sub(r"[\W_]", "", str(name)).lower()):
                return shown_key(name)
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_name_of_a_secret, below)), None)


class AskedModel(Block):
    """The language model that a stage asks: in its own process, or behind an endpoint."""

    model: PathOrName | None = Field(None, description="directory or hub name of the model")
    engine: EngineConfig = Field(EngineConfig(), description="the engine of the model")
    endpoint: Endpoint | None = Field(None, description="an endpoint instead of model and engine")

    def check_one_model(self, block: str) -> None:
        """Raise ValueError unless exactly one of ``model`` and ``endpoint`` is set."""
        if self.model is None and self.endpoint is None:
            raise ValueError(f"a language model is needed; set {block}.model or {block}.endpoint")
        if self.model is not None and self.endpoint is not None:
            raise ValueError(
                f"{block}.model and {block}.endpoint are both set; set one of them to null"
            )


# Parts that a stage is divided into, for several GPUs or machines; None: the ``shards`` of the run.
Shards = Annotated[Few | None, Execution()]


def for_round(values: tuple[float, ...], number: int) -> float:
    """The value of round ``number`` (from 1); the last value is used for all later rounds."""
    return values[min(number, len(values)) - 1]
