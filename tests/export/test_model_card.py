"""The evaluation in the card of an exported policy."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard

from pipeline.training.export.model import TrainedPolicy, model_card
from pipeline.training.lineage import Lineage

SETTINGS = {"grammar": "tearag", "questions": "nq", "retrieval": "ppr", "format": "tags"}


def test_the_card_has_both_averages_and_says_which_is_which(tmp_path: Path) -> None:
    row = {"split": "test", "n": 51, "format_ok": 1, "steps": 2}
    rows = [
        row | {"dataset": dataset, "em": em, "f1": em + 0.1}
        for dataset, em in (("nq", 0.3), ("all-questions", 0.25), ("all", 0.2))
    ]
    lineage = Lineage("p", "org/base", "0", None, None, 0, "sft", {}, 0, {})
    policy = TrainedPolicy("p", "org/base", tmp_path, tmp_path, lineage, None, SETTINGS, rows)
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
