"""The stage ``judge``: its output, its failure, and reruns that request only missing verdicts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.errors import JudgeError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Step, Trajectory
from pipeline.core.verdicts import JudgedStep, Verdict
from pipeline.engine.run import RunFailed, run
from pipeline.engine.store import read_manifest
from pipeline.judges.cases import CallRecord, Judge
from pipeline.judges.judge_steps import judge_steps
from tasks import task_for
from tasks.judge import CALLS, VERDICTS, judge_to
from tests.judges.known_judges import KnownJudge, KnownPolicy, trajectory
from tests.llm.fake_endpoint import FakeEndpoint, refusal
from tests.llm.small_models import small_adapter

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    JudgedStep("a", 0, "Who?", "", "Ann"),
    JudgedStep("a", 1, "Who?", "", "Bo"),
    JudgedStep("b", 0, "Who?", "", "Ann"),
    JudgedStep("b", 1, None, "I know.", "what?"),
]


def judged(folder: Path, ceiling: float) -> dict[str, int]:
    return judge_to(
        folder / "out", folder / "checkpoints", STEPS, KnownPolicy(), KnownJudge(), KnownJudge(),
        ceiling=ceiling,
    )  # fmt: skip


def test_verdicts_calls_and_counts_are_written(tmp_path: Path):
    assert judged(tmp_path, 0.25) == {"steps": 4, "calls": 3, "unknown": 1}
    verdicts = read_records(tmp_path / "out" / VERDICTS, Verdict)
    expected = judge_steps(STEPS, KnownPolicy(), KnownJudge(), KnownJudge())
    assert verdicts == list(expected.verdicts(STEPS))
    calls = {call.key: call for call in read_records(tmp_path / "out" / CALLS, CallRecord)}
    assert {verdict.key for verdict in verdicts} == calls.keys()
    assert (calls[verdicts[0].key].answer, calls[verdicts[0].key].conclusion) == ("Ann", "Ann")
    assert calls[verdicts[3].key].query is None
    assert json.loads((tmp_path / "out" / "statistics.json").read_text()) == {
        "over": {"yes": 2, "no": 1, "unknown": 0},
        "under": {"yes": 0, "no": 0, "unknown": 1},
        "unknown": 1,
        "calls": {"over": 2, "under": 1},
        "faults": {"not readable": 1},
    }
    assert not (tmp_path / "checkpoints").exists()


def test_too_many_unknown_verdicts_fail_and_the_files_are_kept(tmp_path: Path):
    with pytest.raises(
        JudgeError, match=r"1 of 4 steps have no verdict \(1 not readable\)"
    ) as error:
        judged(tmp_path, 0.24)
    assert "expected at most 24.0% (judges.unknown_ceiling)" in str(error.value)
    assert len(read_records(tmp_path / "checkpoints" / VERDICTS, Verdict)) == 4
    assert not (tmp_path / "out").exists()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEndpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeEndpoint(lambda text, before: "<answer>False</answer>") as server:
        yield server


def task(workspace: Path, model: Path, server: FakeEndpoint, **settings: object) -> Judge:
    endpoint = {"base_url": server.url, "model": "judge-1", "retries": 0}
    engine = {"kind": "transformers", "dtype": "float32", "max_model_len": 512}
    judges = {
        "over": {"backend": "openai", "endpoint": endpoint},
        "under": {"backend": "vllm", "model": str(model), "engine": engine},
        "unknown_ceiling": 0.5,
        **settings,
    }
    return task_for(
        "judge",
        str(ROOT / "configs/embedded.yaml"),
        (
            f"runs_dir={workspace / 'runs'}",
            f"cache_dir={workspace / 'cache'}",
            f"model.base={model}",
            f"engine={json.dumps(engine)}",
            f"judges={json.dumps(judges)}",
            "shards=1",
        ),
        round=1,
    )


def fabricate_round(judge: Judge, workspace: Path, model: Path) -> None:
    """Commit a random policy and its trajectories to the store as finished stages."""
    for name, stage in judge.inputs.items():
        written = workspace / name
        written.mkdir()
        if name == "policy":
            small_adapter(model, written / "adapter")
            (written / "lineage.json").write_text('{"policy": "p"}')
        else:
            search = Step(reasoning="r", search="Who?", conclusion="Ann")
            trajectories = [
                trajectory("a", "hiprag", search, Step(reasoning="I know.", conclusion="Bo")),
                trajectory(
                    "b", "hiprag", search, Step(reasoning="r", search="Where?", conclusion="Rome")
                ),
            ]
            write_parquet(written / "trajectories.parquet", trajectories, Trajectory)
        stage.directory.parent.mkdir(parents=True)
        stage.store.commit(stage.key, written, {"counts": {"rows": 1}})


@pytest.mark.slow
def test_the_stage_runs_the_policy_and_both_backends_and_requests_nothing_twice(
    tmp_path: Path, model: Path, server: FakeEndpoint
):
    first = task(tmp_path, model, server)
    fabricate_round(first, tmp_path, model)
    server.script = lambda text, before: refusal(401, "no such key")
    with pytest.raises(RunFailed, match="no such key") as caught:
        run(first)
    assert caught.value.exit_status == 2

    server.script = lambda text, before: "<answer>False</answer>"
    server.request_counts.clear()
    folder = run(task(tmp_path, model, server))
    verdicts = read_records(folder / VERDICTS, Verdict)
    # The random model in this process gives no readable verdict.
    assert [(v.id, v.step, v.kind, v.verdict) for v in verdicts] == [
        ("a", 0, "over", "no"),
        ("a", 1, "under", "unknown"),
        ("b", 0, "over", "no"),
        ("b", 1, "over", "no"),
    ]
    assert [verdict.model for verdict in verdicts] == ["judge-1", str(model), "judge-1", "judge-1"]
    assert server.request_counts.total() == 2
    calls = {call.key: call for call in read_records(folder / CALLS, CallRecord)}
    assert calls[verdicts[0].key].answer, "the policy's answer is empty"
    chats = json.loads((folder / "chat.json").read_text())
    assert chats["policy"]["answers"] == chats["over"]["answers"] == 2

    # The setting is part of the fingerprint, so the stage runs again, from cached replies only.
    again = task(tmp_path, model, server, unknown_ceiling=0.6)
    assert not again.complete()
    assert read_records(run(again) / VERDICTS, Verdict) == verdicts
    assert server.request_counts.total() == 2
    manifest = read_manifest(folder)
    assert manifest["counts"] == {"steps": 4, "calls": 3, "unknown": 1}
