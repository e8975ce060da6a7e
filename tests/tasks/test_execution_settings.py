"""Execution settings of a finished run: nothing reruns when one changes, and the difference is told."""

import json
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config import Config
from pipeline.config.base import execution_values
from pipeline.engine.run import keep_dtypes, run, walk
from pipeline.engine.stage import needed_here, resolved
from pipeline.engine.status import status, why
from pipeline.engine.store import read_manifest
from tasks import task_for
from tests.tasks.counting_tasks import ROOT, First, executions, task
from tests.tasks.declared import stages
from tests.tasks.small_run import commit_text

ENDPOINT = "{base_url: http://localhost:1/v1, model: m, prices: {prompt: 1}, cost_ceiling: 2}"
OPENAI = "{backend: openai, endpoint: " + ENDPOINT + "}"
JUDGES = "{over: " + OPENAI + ", under: " + OPENAI + "}"
OPTIONAL = (
    f"graph.endpoint={ENDPOINT}",
    f"hypergraph.endpoint={ENDPOINT}",
    f"sft_data.endpoint={ENDPOINT}",
    f"judges={JUDGES}",
    f"evaluation.judges={JUDGES}",
    "rewards.reranker={}",
    "grpo={learning_rate: 1.0e-4, batch_size: 16, per: trajectory, processes: 2}",
)


def report(config: str, *overrides: str):  # type: ignore[no-untyped-def]
    return task_for("report", str(ROOT / "configs" / config), ("shards=1", "rounds=1", *overrides))


def other_values(value: Any, name: str) -> list[Any]:
    """Values that differ from ``value``; at least one is valid for the setting."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value / 2, value * 2]
    texts = ["cpu", "cuda", "ray", "local", "auto", "refuse", "http://localhost:2", "OTHER_KEY"]
    return [*texts, 7, ["tensorboard"], ["--qos=high"], {"backend": "closed-world"}]


def changed(settings: Config, name: str) -> str:
    """An override that gives the setting ``name`` another valid value."""
    value = execution_values(settings)[name]
    for other in other_values(value, name):
        override = f"{name}={json.dumps(other)}"
        dumped = settings.model_dump(mode="json")
        *parents, last = name.split(".")
        reduce(getitem, parents, dumped)[last] = other
        try:
            if Config.model_validate(dumped) != settings:
                return override
        except ValidationError:
            continue
    raise AssertionError(f"no other value for {name}")


@pytest.mark.parametrize(
    ("config", "overrides"),
    [("embedded-hiprag.yaml", OPTIONAL), ("embedded-prograph.yaml", ())],
)
def test_no_execution_setting_makes_a_stage_of_a_finished_run_stale(
    tmp_path, monkeypatch, config, overrides
) -> None:
    """All change together. The first run has them all."""
    monkeypatch.chdir(tmp_path)
    finished = report(config, *overrides)
    keep_dtypes(resolved(finished))  # as a run does when it starts
    keys = {needed.label: needed.key for needed in walk(finished)}
    for needed in walk(finished):
        commit_text(needed, needed.label)
    names = [name for name in execution_values(finished.settings) if name != "runs_dir"]
    again = report(config, *overrides, *(changed(finished.settings, name) for name in names))
    needed = list(walk(again))
    assert {"sft", "train-1", "report"} <= {stage.label for stage in needed}
    for stage in needed:  # graph and index are on the machine of the retrieval service
        assert stage.key == keys[stage.label], stage.label
        assert stage.complete(), stage.label
    elsewhere = report(config, *overrides, "runs_dir=other")
    assert {needed.label: needed.key for needed in walk(elsewhere)} == keys


def test_no_stage_needs_the_index_of_a_retrieval_service() -> None:
    more = ("retrieval.service=http://localhost:8765", "sft_data.context=retrieved")
    found = stages("embedded-prograph", ("sft-data", "sample", "score"), (*more, "rounds=1"))
    assert {task.stage: sorted(needed_here(task)) for task in found} == {
        "sft-data": ["corpus", "graph", "questions"],
        "sample": ["policy", "questions"],
        "score": ["graph", "policy", "sample"],
    }


class Samples(First):
    """Reads a block with settings of both kinds."""

    reads = ("retrieval.top_k", "sampling", "engine")


def test_an_execution_setting_reruns_nothing_and_why_shows_it(workspace) -> None:
    directory = run(task(Samples, workspace))
    recorded = read_manifest(directory)["execution"]
    other = task(Samples, workspace, "engine.max_num_seqs=64", "sampling.in_flight=8", "workers=5")
    assert run(other) == directory
    assert executions(workspace) == ["first"]
    assert [row.state for row in status(other)] == ["done"]
    before = recorded["engine.max_num_seqs"]
    ends = "(changes how work is executed, not its result)"
    assert why(other) == [
        "first: done; nothing would run",
        f"first: setting engine.max_num_seqs: {before} -> 64 {ends}",
        f"first: setting sampling.in_flight: {recorded['sampling.in_flight']} -> 8 {ends}",
        f"first: setting workers: 2 -> 5 {ends}",
    ]
