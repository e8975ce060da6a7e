"""The evaluation in the card of an exported policy, and its chat template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from pipeline.core.errors import InputError
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.training.export.model import TrainedPolicy, export_merged, model_card
from pipeline.training.lineage import Lineage
from tests.llm.small_models import TEMPLATE, small_adapter, small_model

SETTINGS = {"grammar": "tearag", "questions": "nq", "retrieval": "ppr", "format": "tags"}


def trained(
    base: str, directory: Path, adapter: Path, template: str | None = None, rows: Any = ()
) -> Any:
    lineage = Lineage("p", base, "0", None, None, 0, "sft", {}, 0, {})
    return TrainedPolicy("p", base, directory, adapter, lineage, template, SETTINGS, rows)


def test_the_card_has_both_averages_and_says_which_is_which(tmp_path: Path) -> None:
    row = {"split": "test", "n": 51, "format_ok": 1, "steps": 2}
    rows = [
        row | {"dataset": dataset, "em": em, "f1": em + 0.1}
        for dataset, em in (("nq", 0.3), ("all-questions", 0.25), ("all", 0.2))
    ]
    policy = trained("org/base", tmp_path, tmp_path, rows=rows)
    card = ModelCard(model_card(policy, merged=False))
    found = {
        (one.dataset_name, one.metric_type): one.metric_value for one in card.data.eval_results
    }
    questions = "51 questions of the split test, average over"
    assert found == {
        (f"{questions} questions", "em"): 25.0,
        (f"{questions} questions", "f1"): 35.0,
        (f"{questions} data sets", "em"): 20.0,
        (f"{questions} data sets", "f1"): 30.0,
    }


def test_an_exported_policy_has_the_template_of_the_settings_alone(tmp_path: Path) -> None:
    base = small_model(tmp_path / "base")
    tokenizer: Any = model_tokenizer(base)
    tokenizer.chat_template = {"default": TEMPLATE, "tool_use": f"base{TEMPLATE}"}
    tokenizer.save_pretrained(base)
    adapter = small_adapter(base, tmp_path / "adapter")
    for template, expected in (("{{ 1 }}", "{{ 1 }}"), (None, tokenizer.chat_template)):
        output = tmp_path / f"merged-{template}"
        export_merged(trained(str(base), base, adapter, template), output, "float32")
        assert model_tokenizer(output).chat_template == expected


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        (b"---\nlicense: mit\n---\n", "The base model's licence is mit."),
        (b"# Base\n", "The licence of the base model applies."),
        (b"---\nlicense: a: b\n---\n", "mapping values are not allowed here"),
        (b"---\nwords\n---\n", "should be a dict"),
        (b"---\nlicense: mit\n---\nna\xefve", "can't decode byte 0xef"),
        (b"---\n\tlicense: mit\n---\n", "cannot start any token"),
    ],
)
def test_the_licence_is_that_of_the_base_models_card(
    readme: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_bytes(readme)
    policy = trained("org/base", tmp_path, tmp_path)
    if expected.endswith("."):
        assert expected in model_card(policy, merged=False)
        return
    place = (
        re.escape(f"{tmp_path}/README.md: ") + f".*{expected}.*; correct this card, or remove it$"
    )
    with pytest.raises(InputError, match=place):
        model_card(policy, merged=False)
