"""The published configurations name files as their authors do; docs/data.md lists all of them."""

import re
from functools import cache
from pathlib import Path

import pytest

from pipeline import config

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = (
    "tearag-llama3-8b",
    "hiprag-qwen2.5-3b",
    "prograph-qwen2.5-3b",
    "baseline-tearag-qwen2.5-3b",
)


@cache
def of_file(name: str) -> config.Config:
    return config.load(name, ("data.root=/data",))


def listed() -> set[str]:
    """The files that the first column of the table in docs/data.md names."""
    section = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    section = section.split("## Files of the published configurations")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def named(name: str) -> set[str]:
    """The files of documents and questions that a configuration reads."""
    data = of_file(name).data
    splits = (data.sft, data.sampling, data.validation, data.test)
    files = {str(file.path) for split in splits for file in split}
    return files | {str(file.path) for file in of_file(name).corpus.files}


def test_every_listed_file_is_read_by_a_published_configuration() -> None:
    assert listed() == set().union(*map(named, PUBLISHED))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_weigh_the_sft_term_as_it_is_printed(name: str) -> None:
    """The embedded ones weigh TRL's mean by the mean number of trained tokens instead."""
    dpo = of_file(name).dpo
    assert (dpo.eta_of, dpo.eta) == ("sum", (1.0, 0.5, 0.25))
    embedded = of_file("embedded").dpo
    assert (embedded.eta_of, embedded.eta) == ("mean", (130.0,))


def test_hiprag_has_the_models_of_its_tables() -> None:
    """Table 1's HiPRAG-3B starts from the base model, the main experiment of 4.3 from the instruct model."""
    models = {
        "hiprag-qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
        "hiprag-qwen2.5-3b-base": "Qwen/Qwen2.5-3B",
        "hiprag-llama3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
        "hiprag-qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    }
    assert {name: str(of_file(name).model.base) for name in models} == models


@pytest.mark.parametrize("name", ["tearag-llama3-8b", "tearag-qwen2.5-14b", "embedded"])
def test_tearag_retrieves_as_section_5_1_3_says(name: str) -> None:
    """configs/recall adds to it, and docs/results.md says what."""
    retrieval = of_file(name).retrieval
    assert (retrieval.variant, retrieval.top_k) == ("ppr", 5)
    assert (retrieval.num_candidate_chunks, retrieval.chunks) == (20, 5)
    assert (retrieval.num_candidate_entities, retrieval.entities) == (10, 5)
    assert (retrieval.num_candidate_triplets, retrieval.triplets) == (20, 10)
    assert (retrieval.tau, retrieval.alpha) == (0.2, 0.5)
    added = {"linked_chunks": 0, "named_entities": False, "show": "nodes"}
    recall = config.load(ROOT / "configs/recall/musique.yaml", ("data.root=/data",)).retrieval
    for setting, value in added.items():
        assert getattr(retrieval, setting) == value
        assert getattr(recall, setting) != value


def test_hiprag_is_evaluated_at_the_default_temperature_of_its_models() -> None:
    for name in ("hiprag-qwen2.5-3b", "hiprag-qwen2.5-7b"):
        settings = of_file(name)
        evaluated = settings.for_evaluation()
        assert (evaluated.evaluation.temperature, evaluated.sampling.top_p) == (0.7, 0.8)
        assert settings.sampling.top_p == 1
