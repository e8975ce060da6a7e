"""What the stages of the shipped configurations ask for."""

import pytest

from pipeline.core.errors import ConfigError
from tasks.build import check_needs
from tasks.leases import Capacity
from tasks.needs import RULES, Needs, needs
from tasks.planning.simulation import divided_walk
from tasks.run import PER_POLICY, STAGES, task_for

WITHOUT_MODEL = {"world", "corpus", "pair", "evaluate", "report"}


def asked(config: str, *overrides: str) -> dict[str, Needs]:
    report = task_for("report", config, overrides)
    return {task.label: needs(task) for task, _ in divided_walk(report)}


def test_every_stage_has_a_rule_or_loads_no_model():
    assert {*STAGES, *PER_POLICY} == {*RULES, *WITHOUT_MODEL} - {"evaluate-any"}


def test_the_stages_of_tearag_ask_for_what_they_use():
    found = asked("tearag-llama3-8b")
    gpus = {label: one.gpus for label, one in found.items()}
    assert gpus["graph"] == gpus["index"] == 1
    assert gpus["sft-data"] == 8
    assert found["sft-data"].setting == "sft_data.engine.tensor_parallel_size"
    assert gpus["sft"] == gpus["train-3"] == found["train-3"].threads == 8
    assert found["train-3"].setting == "dpo.processes"
    assert gpus["sample-shard-1-007"] == gpus["score-shard-2-000"] == gpus["evaluate-policy-3"] == 1
    for label in ("corpus", "questions-sft", "sample-1", "score-1", "pair-1", "evaluate", "report"):
        assert found[label] == Needs(), label


def test_other_settings_ask_for_other_devices():
    hiprag = asked("hiprag-qwen2.5-3b")
    assert hiprag["judge-1"].gpus == 1  # the policy's closed-book answers; the judges are endpoints
    assert hiprag["score-shard-1-000"] == hiprag["graph"] == Needs()
    local = "{backend: vllm, model: m, engine: {tensor_parallel_size: 4}}"
    judged = asked("hiprag-qwen2.5-3b", f"judges={{over: {local}, under: {local}}}")
    assert judged["judge-1"].setting == "judges.over.engine.tensor_parallel_size"
    assert judged["judge-policy-0"].gpus == 4
    prograph = asked("prograph-qwen2.5-3b", "engine.tensor_parallel_size=2")
    assert prograph["score-shard-1-000"].gpus == prograph["sample-shard-1-000"].gpus == 2
    assert prograph["train-1"] == Needs(4, 4, "grpo.processes")
    on_cpu = ("index.embedder.device=cpu", "sft.device=cpu", "sft.processes=2")
    embedded = asked("embedded", *on_cpu, "engine.kind=scripted", "sampling.shards=1")
    assert embedded["sample-1"].gpus == embedded["index"].gpus == embedded["score-1"].gpus == 0
    assert embedded["sft"] == Needs(0, 2, "sft.processes")


def test_a_model_over_more_gpus_than_the_run_has_is_refused_with_its_setting():
    report = task_for(
        "report", "tearag-llama3-8b", ("gpus=4", "sft.processes=4", "dpo.processes=4")
    )
    capacity = Capacity.expected(report.settings)
    with pytest.raises(ConfigError) as caught:
        check_needs([task for task, _ in divided_walk(report)], capacity)
    assert str(caught.value) == (
        "sft_data.engine.tensor_parallel_size is 8, and gpus is 4, so stage sft-data would never start; "
        "set sft_data.engine.tensor_parallel_size to at most 4, or raise gpus"
    )
