"""The map of the papers' tables: complete, true to the configurations, and every command can be run."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from docs.tables_page import Command, page, rows
from pipeline.cli.app import app
from pipeline.config import Config, load
from pipeline.config.variants import variants
from pipeline.engine.stage import walk
from tasks import STAGES, task_for

ROWS = rows()
COMMANDS = sorted(
    {command for row in ROWS for command in (row.embedded, row.published) if command}, key=str
)

# The rows of tables and figures as the papers print them, with the model where a table has several.
PRINTED = {
    ("TeaRAG", "table 6"): [
        *(f"{method}, {model}" for method in ("zero-shot", "RAG", "Rerank") for model in ("Llama3-8B", "Qwen2.5-14B")),
        "RECOMP", "MixPR-RAG", "IRCoT", "SelfRAG",
        "R1-Searcher-Llama-8B", "R1-Searcher-Llama-8B+R", "R1-Searcher-Qwen-7B", "R1-Searcher-Qwen-7B+R",
        *(f"Search-R1-{kind}" for kind in ("instruct-7B", "base-7B", "base-7B+R", "instruct-14B", "base-14B", "base-14B+R")),
        "TeaRAG-SFT-8B", "TeaRAG-8B", "TeaRAG-SFT-14B", "TeaRAG-14B",
    ],
    ("TeaRAG", "table 7"): [
        f"{method}, {model}"
        for method in ("Single-G", "Single-S", "Single-Con", "Single-PPR", "TeaRAG-G", "TeaRAG-S", "TeaRAG-Con", "TeaRAG")
        for model in ("Llama3-8B", "Qwen2.5-14B")
    ],
    ("TeaRAG", "table 10"): ["TeaRAG-8B", "TeaRAG-14B", "Search-R1-base-7B+R", "Search-R1-base-14B+R"],
    ("TeaRAG", "figure 6"): ["TeaRAG-8B", "TeaRAG-14B", "R1-Searcher-Qwen-7B+R", "Search-R1-base-7B+R", "Search-R1-base-14B", "Search-R1-base-14B+R"],
    ("TeaRAG", "figure 7"): ["TeaRAG-8B", "TeaRAG-14B", "R1-Searcher-Qwen-7B+R", "Search-R1-base-7B+R", "Search-R1-base-14B", "Search-R1-base-14B+R"],
    ("TeaRAG", "figure 10"): [f"k_f = {k}, {model}" for k in range(1, 6) for model in ("TeaRAG-8B", "Search-R1-base-7B+R")],
    ("TeaRAG", "figure 11"): [f"k_f = {k}, {model}" for k in range(1, 6) for model in ("TeaRAG-14B", "Search-R1-base-14B+R")],
    ("TeaRAG", "figure 12"): [f"α = 0.{tenths}, {model}" for tenths in (1, 3, 5, 7, 9) for model in ("TeaRAG-8B", "TeaRAG-14B")],
    ("TeaRAG", "figure 13"): [f"temperature = {value}, {model}" for value in (0.2, 0.4, 0.6, 0.8, 1.0) for model in ("TeaRAG-8B", "Search-R1-base-7B+R")],
    ("HiPRAG", "table 1"): [
        "Direct Inference", "Standard RAG", "IRCoT", "Search-o1", "R1-Searcher", "R1-Searcher++", "Search-R1",
        "Search-R1-step*", "β-GRPO", "β-GRPO-step*", "HiPRAG-3B", "HiPRAG-7B",
    ],
    ("HiPRAG", "table 2"): [
        *(
            f"{model}, {method}"
            for model in ("Llama-3.2-3B-Instruct, PPO", "Qwen2.5-3B-Instruct, GRPO", "Qwen2.5-3B, PPO", "Qwen2.5-7B-Instruct, GRPO", "Qwen2.5-7B-Instruct, PPO")
            for method in ("baseline", "HiPRAG")
        ),
        "Qwen2.5-3B-Instruct, PPO, baseline (λ_p = 0)", "Qwen2.5-3B-Instruct, PPO, HiPRAG (λ_p = 0.4)",
        "over-search only", "under-search only", "λ_p = 0.2", "λ_p = 0.6",
    ],
    ("ProGraph-R1", "table 1"): [
        *(f"{method}, {size}" for method in ("NaiveGeneration", "StandardRAG", "Search-R1", "Graph-R1") for size in ("3B", "7B")),
        "SFT, 3B and 7B", "R1, 3B and 7B", "R1-Searcher, 3B and 7B", "ProGraph-R1-3B", "ProGraph-R1-7B",
    ],
    ("ProGraph-R1", "table 2"): ["neither", "retrieval by informativeness", "step-wise optimization", "both"],
    ("ProGraph-R1", "table 3"): ["neither", "step progress", "structure progress", "both"],
    ("ProGraph-R1", "table 4"): ["no retrieval", "knowledge corpus", "hyperedge", "Graph-R1", "ProGraph-R1"],
    ("ProGraph-R1", "table 5"): [f"{method}, {size}" for method in ("Graph-R1", "ProGraph-R1") for size in ("3B", "7B")],
}  # fmt: skip


@cache
def loaded(command: Command) -> Config:
    return load(command.variant or command.config, (*command.settings, "data.root=/data"))


def test_the_page_has_every_row() -> None:
    assert sum(line.startswith("| ") for line in page().splitlines()) == len(ROWS) + len(
        {(row.paper, row.table) for row in ROWS}
    )


def numbers(paper: str, kind: str) -> set[int]:
    """The numbers of all tables, or all figures, of a paper on the page."""
    found: set[int] = set()
    for table in {row.table for row in ROWS if row.paper.startswith(paper)}:
        listed = re.match(rf"{kind}s? ([\d, a-z]+):", table)
        for part in re.split(r", | and ", listed[1]) if listed else ():
            first, _, last = part.partition(" to ")
            found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("paper", "tables", "figures"), [("TeaRAG", 11, 13), ("HiPRAG", 6, 8), ("ProGraph-R1", 6, 1)]
)
def test_every_table_and_figure_of_a_paper_is_listed(paper: str, tables: int, figures: int) -> None:
    assert numbers(paper, "table") == set(range(1, tables + 1))
    assert numbers(paper, "figure") == set(range(1, figures + 1))


@pytest.mark.parametrize(
    ("paper", "table"), PRINTED, ids=lambda text: text if isinstance(text, str) else ""
)
def test_every_row_of_a_printed_table_is_listed(paper: str, table: str) -> None:
    own = [row for row in ROWS if row.paper.startswith(paper) and row.table.startswith(f"{table}:")]
    listed = {row.row for row in own}
    listed |= {name for row in own for name in row.row.split(", ")}  # some rows have several
    assert set(PRINTED[paper, table]) <= listed


def test_every_row_has_a_command_or_a_reason() -> None:
    for row in ROWS:
        assert bool(row.missing) != bool(row.embedded or row.published), row


def test_every_configuration_of_a_row_is_valid() -> None:
    for command in COMMANDS:
        # make splits SET at spaces, and so does the shell
        assert not any(" " in setting for setting in command.settings), command
        config = loaded(command)
        if command.variant and not command.settings:
            assert config.name == command.variant


def test_a_command_at_the_published_size_has_no_setting_of_the_closed_world() -> None:
    own = {"data.closed_world", "data.sampling", "shards"}
    for row in ROWS:
        for setting in row.published.settings if row.published else ():
            assert not any(setting.startswith(name) for name in own), row


def test_a_model_for_one_data_set_has_its_paragraphs_and_128_test_questions() -> None:
    """ProGraph-R1's protocol, at both sizes."""
    for size in ("3b", "7b"):
        for name in ("hotpotqa", "2wiki", "musique", "nq"):
            config = load(f"prograph-qwen2.5-{size}-{name}", ("data.root=/data",))
            assert str(config.model.base).lower() == f"qwen/qwen2.5-{size}-instruct"
            [test], [sampling] = config.data.test, config.data.sampling
            assert (test.dataset, test.limit, sampling.dataset) == (name, 128, name)
            assert {file.dataset for file in config.corpus.files} == {name}
            assert {file.path for file in config.corpus.files} == {sampling.path, test.path}
            assert (config.start, config.data.sft) == ("base", ())


def test_a_variant_changes_its_base() -> None:
    """Except for a value of a paper, which has a row of its own in the tables."""
    equal = set()
    for name, variant in variants().items():
        own, base = (
            load(found, ("data.root=/data",)).model_dump(exclude={"name"})
            for found in (name, variant.base)
        )
        equal |= {name} if own == base else set()
    assert equal == {"hiprag-lambda-0.4"}


def test_ablations_of_tearag_share_the_graph_and_train_another_policy(tmp_path: Path) -> None:
    """One of each kind: of the pairs, the retrieval, the number of items and the training."""
    overrides = (f"runs_dir={tmp_path}", "rounds=1")
    whole = {task.label: task.key for task in walk(task_for("report", "embedded-full", overrides))}
    for name in ("tearag-outcome", "tearag-graph", "tearag-top-k-1", "tearag-eta-0"):
        report = task_for("report", name, overrides)
        keys = {task.label: task.key for task in walk(report)}
        assert keys["graph"] == whole["graph"]
        assert keys["train-1"] != whole["train-1"]


COMMAND_LINE = get_command(app)
STEEP = [command for command in COMMANDS if command.steep]


def test_every_command_of_a_row_can_be_parsed_and_carried_out() -> None:
    """Its options exist, and its configuration has what it asks for: the stage, the policy, the judges."""
    for command in STEEP:
        words = shlex.split(str(command))
        assert words[0] == "steep"
        options = COMMAND_LINE.commands[words[1]].make_context(words[1], words[2:]).params  # type: ignore[attr-defined]
        if "VERDICTS" in words:
            assert (options["judged"], options["truth"]) == (Path("VERDICTS"), Path("VERDICTS"))
            continue
        if command.variant:
            assert (options["variant"], options["config"]) == (command.variant, None)
        else:
            assert options["config"] == f"configs/{command.config}.yaml"
        assert (options["data"] is not None) == command.data
        assert tuple(options["set"] or ()) == command.settings
        config = loaded(command)
        if words[1] == "run":
            assert words[2] in STAGES
        if words[1] == "calibrate":
            assert config.judges is not None
        if words[1] in ("evaluate", "view"):
            number = options.get("policy") or [str(options["round"])]
            assert int(number[0]) <= config.rounds, command
        if words[1] in ("calibrate", "view"):
            config.check_round(options["round"])


def test_commands_beside_a_run_write_files_of_their_own() -> None:
    """Figures 10 to 13 leave the results of the run as they are."""
    outputs = [
        (str(command.data), match[1])
        for command in STEEP
        if (match := re.search(r"--output (\S+)", command.steep))
    ]
    assert len(outputs) == len(set(outputs))
    figures = [row for row in ROWS if re.match(r"figure 1[0-3]:", row.table)]
    for command in {command for row in figures for command in (row.embedded, row.published)}:
        assert command is None or command.steep or not command.settings, command
