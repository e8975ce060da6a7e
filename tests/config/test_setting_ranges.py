"""Every numeric setting of every block refuses NaN, infinity, booleans, texts and a wrong sign."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.config import Config
from tests.config.settings_walk import blocks, parts

# (block, field): why a negative number is legitimate there.
NEGATIVE = {
    ("Reranker", "scale"): "a fitted slope; below 0 it reverses the order of the embedder",
    ("Reranker", "offset"): "a fitted intercept",
    ("QuestionFile", "filter"): "compared with a field of the data set, which may hold any number",
}
# (block, field): why a boolean is legitimate there.
BOOLEAN = {("QuestionFile", "filter"): "compared with a field, such as MuSiQue's `answerable`"}
NAN, INFINITY = float("nan"), float("inf")


NUMERIC = [
    (block, name, kind, wrap)
    for block in sorted(blocks(Config), key=lambda block: block.__name__)
    for name, field in block.model_fields.items()
    for kind, wrap in parts(field.annotation)
    if kind in (int, float)
]


def refused(block: type[BaseModel], name: str, value: Any) -> bool:
    try:
        block.model_validate({name: value})
    except ValidationError as error:
        return any(item["loc"][:1] == (name,) for item in error.errors())
    return False


def test_a_numeric_setting_refuses_what_is_no_number_in_its_range() -> None:
    for block, name, kind, wrap in NUMERIC:
        bad = [NAN, INFINITY, -INFINITY, 1e300, 10**30, b"1"]
        bad += ["1"] if (block.__name__, name) not in TEXTS else []
        bad += [True, False] if (block.__name__, name) not in BOOLEAN else []
        bad += [-1, -1.0] if (block.__name__, name) not in NEGATIVE else []
        bad += [1.0, 1.5] if kind is int else []
        for value in bad:
            assert refused(block, name, wrap(value)), f"{block.__name__}.{name} accepts {value!r}"


# Fields whose values or keys may also be texts: filters hold texts, and JSON has only texts as keys.
TEXTS = {("QuestionFile", "filter"), ("SftData", "sizes"), ("SftData", "test_sizes")}


def test_the_walk_finds_numbers_in_lists_optional_fields_and_keys() -> None:
    names = [f"{block.__name__}.{name}" for block, name, _, _ in NUMERIC]
    assert len(names) > 100
    for name in ("Dpo.eta", "Dpo.round_epochs", "Pairs.margin", "Endpoint.timeout", "Noise.share"):
        assert name in names
    assert names.count("SftData.sizes") == 2  # keys and values
