"""Requests to endpoints in plans: their number, tokens and cost, and the ceilings that paid ones need."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Block, Endpoint, load
from pipeline.config.base import is_public
from pipeline.core.shipped import configuration_names
from pipeline.engine.plan.money import totals
from pipeline.engine.plan.plan import Plan, make_plan, summary
from pipeline.engine.plan.sizes import sizes_of
from pipeline.engine.stage import walk_configured
from tasks.report import Report
from tests.cli.malformed_inputs import steep

OVER, UNDER = "judges.over.endpoint", "judges.under.endpoint"
LOCAL = {"base_url": "http://localhost:8000/v1", "model": "m"}
PAID = {**LOCAL, "base_url": "https://api.example.com/v1"}


def planned(name: str, *overrides: str) -> Plan:
    tasks = list(walk_configured(Report(config=name, overrides=overrides)))
    return make_plan(tasks, sizes_of(load(name, overrides)), ())


def asked(plan: Plan) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Requests, tokens read and tokens written, by stage and setting."""
    return {
        (one.stage, one.remote.key): (round(one.calls), round(one.read), round(one.written))
        for one in totals(plan.asked)
    }


def graph(endpoint: dict[str, Any], **more: Any) -> str:
    return f"graph={json.dumps({'source': 'llm', 'endpoint': {**endpoint, **more}})}"


def test_the_published_judges_are_counted_and_priced() -> None:
    """9,000 questions of 5 samples in 3 rounds, and 4 policies on 51,713 questions; 1.5 steps each."""
    plan = planned("hiprag-qwen2.5-7b")
    read, policies = 400 * 202_500, 400 * 310_278
    assert asked(plan) == {
        ("judge", OVER): (202_500, read, 50 * 202_500),
        ("judge", UNDER): (202_500, read, (50 + 512) * 202_500),
        ("judge-policy", OVER): (310_278, policies, 50 * 310_278),
        ("judge-policy", UNDER): (310_278, policies, (50 + 512) * 310_278),
    }
    assert [line for line in summary(plan, ()) if "requests" in line] == [
        "about 1,025,556 requests to endpoints, cost about 750.71; computed and not measured, without "
        "answers in the cache"
    ]


def test_extraction_and_the_cold_start_are_counted_by_chunk_and_example() -> None:
    block = {
        "triplets": "llm",
        "endpoint": LOCAL,
        "sizes": {1: 100, 2: 60},
        "test_sizes": {1: 20, 2: 20},
    }
    overrides = (f"sft_data={json.dumps(block)}", "data.closed_world.documents=300")
    assert asked(planned("embedded", graph(LOCAL), *overrides)) == {
        ("graph", "graph.endpoint"): (300, 300 * 390, 300 * 200),
        ("sft-data", "sft_data.endpoint"): (2_000, 200 * 4_000, 200 * 150),
    }


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (LOCAL, None),
        ({**PAID, "token_ceiling": 9**9}, None),
        ({**LOCAL, "prices": {"prompt": 1}, "token_ceiling": 9**9}, None),
        ({**LOCAL, "prices": {"prompt": 1}, "cost_ceiling": 0.01}, None),
        (
            PAID,
            "graph.endpoint.token_ceiling, for example to 360000 (graph is expected to take 177",
        ),
        (
            {**LOCAL, "prices": {"prompt": 100}},
            "set graph.endpoint.cost_ceiling, for example to 24",
        ),
        (
            {**PAID, "prices": {"completion": 0.001}},
            "graph.endpoint.cost_ceiling, for example to 1",
        ),
    ],
    ids=str,
)
def test_a_paid_endpoint_needs_a_ceiling(endpoint: dict[str, Any], words: str | None) -> None:
    faults = list(planned("embedded", graph(endpoint), "data.closed_world.documents=300").faults())
    assert len(faults) == (words is not None)
    assert all(str(words) in fault for fault in faults)


def test_a_ceiling_that_a_stage_would_reach_is_named() -> None:
    endpoint = {**LOCAL, "prices": {"prompt": 100, "completion": 0}, "cost_ceiling": 5}
    lines = list(
        summary(planned("embedded", graph(endpoint), "data.closed_world.documents=300"), ())
    )
    assert lines[-1] == (
        "graph.endpoint.cost_ceiling is 5.0, and graph is expected to take 12; it would stop there"
    )


def test_check_and_plan_print_the_requests_and_check_refuses_a_run_without_a_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--config", "embedded", "--set"]
    status, printed, complaint = steep(["check", *options, graph(PAID)])
    assert (status, printed) == (2, "")
    assert complaint.startswith("graph.endpoint.base_url is a public address, which may cost money")
    for command in ("check", "plan"):
        status, printed, complaint = steep([command, *options, graph(PAID, token_ceiling=9**9)])
        assert (status, complaint) == (0, "")
        assert "requests to endpoints, price unknown (set prices)" in printed
        [row] = [line for line in printed.splitlines() if "│ graph.endpoint " in line]
        assert "price unknown" in row
    made = json.loads(steep(["plan", *options, graph(PAID), "--json"])[1])["plan"]
    [found] = [one for stage in made["stages"] for one in stage["endpoints"]]
    assert (found["endpoint"], found["model"], found["cost"]) == ("graph.endpoint", "m", None)


def endpoints(block: Block) -> Iterator[Endpoint]:
    for value in dict(block).values():
        if isinstance(value, Endpoint):
            yield value
        elif isinstance(value, Block):
            yield from endpoints(value)


def test_no_shipped_configuration_has_a_paid_endpoint_without_a_ceiling() -> None:
    found = {
        name: list(endpoints(load(name, ("data.root=/data",)))) for name in configuration_names()
    }
    assert sum(map(len, found.values())) >= 4
    assert [name for name, of in found.items() if any(one.unbounded for one in of)] == []


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("localhost", False), ("[::1]", False), ("10.1.2.3", False), ("[fd00::1]", False),
        ("node-7", False), ("vllm.default.svc.cluster.local", False), ("a.internal", False),
        ("api.openai.com", True), ("openrouter.ai.", True), ("8.8.8.8", True), ("[2606::1]", True),
    ],
)  # fmt: skip
def test_a_public_address_is_told_from_a_private_one(host: str, public: bool) -> None:
    assert is_public(f"https://{host}:8000/v1") is public
