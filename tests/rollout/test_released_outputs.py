"""Outputs of the released Search-R1 and R1-Searcher models: imported, scored and tabled as they are.

The figures are computed again from the raw rows in a few lines that share no code with the project.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import Trajectory
from pipeline.core.spans import pieces
from tests.cli.malformed_inputs import steep

# The rows of every file, and how many of them follow the grammar.
FILES = {
    "r1searcher_2wiki_qwen_272": (272, 272),
    "r1searcher_bamboogle_llama_58": (58, 58),
    "r1searcher_bamboogle_qwen_58": (58, 58),
    "r1searcher_hotpotqa_llama_227": (227, 227),
    "r1searcher_hotpotqa_qwen_227": (227, 227),
    "searchr1_base_100_51": (51, 38),
    "searchr1_base_vllm_100_51": (51, 44),
    "searchr1_results_ppo_step400_30_14": (14, 12),
    "searchr1_sft_100_51": (51, 50),
    "searchr1_sft_fixed_vllm_100_51": (51, 49),
}


def words(text: str | None) -> list[str]:
    plain = "".join(c for c in (text or "").lower() if c not in string.punctuation)
    return [word for word in plain.split() if word not in ("a", "an", "the")]


def figures(answer: str | None, golds: list[str]) -> tuple[float, float, float]:
    """EM, F1 and CEM in whole words."""
    said, best = words(answer), (0.0, 0.0, 0.0)
    for gold in map(words, golds):
        common = (Counter(said) & Counter(gold)).total()
        cem = any(said[i : i + len(gold)] == gold for i in range(len(said)))
        one = (float(said == gold), 2 * common / max(len(said) + len(gold), 1), float(cem))
        best = tuple(map(max, best, one)) if said and gold else best  # type: ignore[assignment]
    return best


def raw(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def of_row(row: dict[str, Any]) -> tuple[str | None, list[str], str]:
    """The answer, the gold answers and the data set of a row."""
    if text := row.get("gen_text_store"):
        return text.rpartition("<answer>")[2].partition("</answer>")[0], [row["answer"]], ""
    return row["predicted"], row["golden"], row["dataset"].lower()


@pytest.fixture(scope="module")
def imported(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, imported into one."""
    output = tmp_path_factory.mktemp("imported") / "t.jsonl"
    files = [str(real_data / "trajectories" / f"{name}.jsonl") for name in FILES]
    status, _, said = steep(["import", *files, "-o", str(output)])
    assert (status, said.strip()) == (0, "1060 imported, 0 left out")
    return output


@pytest.fixture(scope="module")
def table(imported: Path) -> list[dict[str, Any]]:
    written = imported.with_name("rows.jsonl")
    steep(["metrics", str(imported), "--table", "-o", str(written)])
    return raw(written)


@pytest.mark.parametrize("name", FILES)
def test_the_table_of_a_file_is_that_of_its_raw_rows(
    name: str, real_data: Path, table: list[dict[str, Any]]
) -> None:
    count, well_formed = FILES[name]
    expected: dict[str, list[tuple[float, float, float]]] = {}
    for answer, golds, dataset in map(of_row, raw(real_data / "trajectories" / f"{name}.jsonl")):
        expected.setdefault(dataset, []).append(figures(answer, golds))
    assert sum(map(len, expected.values())) == count
    of_file = {row["dataset"]: row for row in table if row["policy"] == name}
    for dataset, values in expected.items():
        row = of_file[dataset]
        means = [sum(column) / len(values) for column in zip(*values, strict=True)]
        assert row["n"] == len(values)
        assert [row["em"], row["f1"], row["cem"]] == pytest.approx(means, abs=1e-12)
        assert 0.25 < row["em"] <= row["cem"] < 0.7
    found = sum(of_file[dataset]["format_ok"] * of_file[dataset]["n"] for dataset in expected)
    assert found == pytest.approx(well_formed)


def test_no_document_of_r1_searcher_becomes_text_of_the_policy(
    imported: Path, real_data: Path
) -> None:
    names = [name for name in FILES if name.startswith("r1searcher_")]
    rows = [row for name in names for row in raw(real_data / "trajectories" / f"{name}.jsonl")]
    found = [each for each in read_records(imported, Trajectory) if each.policy in names]
    assert len(found) == len(rows)
    assert {each.grammar for each in found} == {"r1-searcher"}
    assert sum(len(each.steps) for each in found) == 1997
    queries = re.compile(r"<\|begin_of_query\|>(.*?)<\|end_of_query\|>", re.DOTALL)
    documents = re.compile(r"<\|begin_of_documents\|>(.*?)<\|end_of_documents\|>", re.DOTALL)
    # One row states the gold answer as the model's, which wrote the date in another form.
    other = [(a.answer, b["pred_ans"].strip()) for a, b in zip(found, rows, strict=True)]
    assert [each for each in other if each[0] != each[1]] == [("27 July 1953", "July 27, 1953")]
    for row, each in zip(rows, found, strict=True):
        text = row["gen_text_store"]
        assert each.output == text
        assert [step.subquery for step in each.steps] == [q.strip() for q in queries.findall(text)]
        own = pieces(each.output, each.spans, "model")
        assert " ".join(own).split() == documents.sub(" ", text).split()
        blocks = documents.findall(text)
        for step, block in zip(each.steps, blocks, strict=True):
            assert len(step.context) == len(re.findall(r"^\([0-9]+\)", block, re.MULTILINE)) == 5
            assert all(item.title and item.text for item in step.context)


def test_cover_exact_match_is_of_whole_words_or_of_a_substring(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"answer": "Americans", "answers": ["American"]}\n')
    found = [
        json.loads(steep(["metrics", str(file), *options])[1])["cem"]
        for options in ((), ("--cem", "substring"))
    ]
    assert found == [0, 1]
