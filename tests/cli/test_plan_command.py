"""``steep plan``: the stages that would run, the table, and its JSON."""

import json

import pytest

from pipeline.config.machine_choices import resolve_dtypes
from tasks import task_for
from tests.cli.malformed_inputs import accepted, steep
from tests.tasks.small_run import commit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_planned_without_its_data_and_for_another_machine(folder):
    options = ["plan", "--config", "tearag-llama3-8b", "--machine", "8x80"]
    printed = accepted(*options)
    unknown, stages, heading, *rows = printed.splitlines()
    assert "the state of its stages is unknown: psgs_w100.tsv: no such file" in unknown
    assert stages.startswith("28 stages would run: corpus, graph, index, ")
    assert ", evaluate-policy (4), sample (3), score (3), pair (3), train (3), " in stages
    assert heading.startswith("GPU memory in GiB")
    (train,) = [row for row in rows if row.startswith("│ train")]
    assert [cell.strip() for cell in train.split("│")[2:5]] == ["8", "41.7", "6.6"]
    assert rows[-2].startswith(
        "8 GPUs, at most 75.6 GiB of 78.8 (evaluate-policy); disk about 1,29"
    )
    assert rows[-1] == "about 374.1 GPU hours, computed and not measured"
    made = json.loads(steep([*options, "--json"])[1])
    assert made["plan"]["gpu_hours"] == pytest.approx(374.1, abs=0.1)
    assert len(made["running"]) == 28
    assert not list(folder.iterdir())


def test_numbers_have_the_types_of_the_described_machine(monkeypatch):
    """As in `steep check`, where this machine computes in float32."""
    monkeypatch.setitem(resolve_dtypes.__kwdefaults__, "cpu", lambda engine: "float32")
    options = ["plan", "sft", "--machine", "1x80", "--json"]
    assert accepted(*options) == accepted(*options, "--set", "sft.dtype=bfloat16")


def test_a_machine_that_does_not_fit_is_a_fault(folder):
    options = ["plan", "--config", "tearag-llama3-8b", "--machine", "8x16"]
    status, printed, complaint = steep(options)
    assert status == 2
    assert "28 stages would run" in printed
    assert "train needs " in complaint
    assert " GiB on a GPU of 15." in complaint
    status, printed, again = steep([*options, "--json"])
    assert (status, again) == (2, complaint)
    assert json.loads(printed)["faults"] == complaint.splitlines()


def test_finished_stages_are_left_out(folder):
    overrides = ("shards=1",)
    options = ["plan", "graph", "--set", *overrides]
    graph = task_for("graph", "embedded", overrides)
    for stage in graph.requires().values():
        for needed in stage.requires().values():
            commit(needed)
        commit(stage)
    assert "1 stage would run: graph" in steep(options)[1]
    commit(graph)
    assert steep(options)[1] == "every stage is done; nothing would run\n"
