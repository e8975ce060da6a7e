"""What the stages of the shipped configurations ask for."""

from pipeline.engine.leases import Capacity
from pipeline.engine.needs import need_faults, needs
from pipeline.engine.opened import Needs
from pipeline.engine.run import asked_of
from pipeline.engine.stage import StageTask, walk, whole_name
from tasks import task_for


def divided(config: str, *overrides: str) -> list[StageTask]:
    """The tasks of a run with all shards, which the configuration alone tells."""
    report = task_for("report", config, overrides)
    whole = walk(report, lambda one: one.inputs)
    return [one for task in whole for one in (*task.shards().values(), task)]


def asked(config: str, *overrides: str) -> dict[str, Needs]:
    """The most that a task of each stage asks for: a stage that joins shards asks for nothing."""
    found: dict[str, Needs] = {}
    for task in divided(config, *overrides):
        found[whole_name(task)] = max(
            found.get(whole_name(task), Needs()),
            needs(task),
            key=lambda one: (one.gpus, one.threads),
        )
    return found


def test_the_stages_of_tearag_ask_for_what_they_use():
    found = asked("tearag-llama3-8b")
    for stage in ("graph", "index", "sample", "score", "evaluate-policy"):
        assert found[stage].gpus == 1, stage
    assert found["sft-data"] == Needs(8, 8, "sft_data.engine.tensor_parallel_size")
    assert found["sft"] == Needs(8, 8, "sft.processes")
    assert found["train"] == Needs(8, 8, "dpo.processes")
    for stage in ("corpus", "questions-sft", "pair", "evaluate", "report"):
        assert found[stage] == Needs(), stage


def test_a_stage_that_joins_shards_asks_for_nothing():
    found = {task.label: needs(task) for task in divided("tearag-llama3-8b")}
    assert found["sample-1"] == found["score-3"] == Needs()
    assert found["sample-shard-1-007"].gpus == found["score-shard-2-000"].gpus == 1


def test_other_settings_ask_for_other_devices():
    hiprag = asked("hiprag-qwen2.5-3b")
    assert hiprag["judge"].gpus == 1  # the policy's closed-book answers; the judges are endpoints
    assert hiprag["score"] == hiprag["graph"] == Needs()
    local = "{backend: vllm, model: m, engine: {tensor_parallel_size: 4}}"
    judged = asked("hiprag-qwen2.5-3b", f"judges={{over: {local}, under: {local}}}")
    assert judged["judge"].setting == "judges.over.engine.tensor_parallel_size"
    assert judged["judge-policy"].gpus == 4
    prograph = asked("prograph-qwen2.5-3b", "engine.tensor_parallel_size=2")
    assert prograph["score"].gpus == prograph["sample"].gpus == 2
    assert prograph["train"] == Needs(4, 4, "grpo.processes")
    on_cpu = ("index.embedder.device=cpu", "sft.processes=2")
    embedded = asked("embedded", *on_cpu)
    assert embedded["index"].gpus == embedded["score"].gpus == 0
    assert embedded["sft"].threads == 2  # one for each training process
    assert embedded["corpus"].threads == 1


def test_a_cluster_without_a_number_of_gpus_is_asked_for_all_processes():
    """The GPUs of the machine that submits say nothing about those of the cluster."""
    here = Capacity(1, 1, ("0",), threads=2, workers=1)
    asked_for = {
        kind: asked_of(task_for("sft", "embedded", (f"execution.kind={kind}",)), here).gpus
        for kind in ("local", "slurm")
    }
    assert asked_for == {"local": 1, "slurm": 2}


def test_more_gpus_than_the_run_has_are_refused_with_the_setting_also_of_a_divided_stage():
    few = ("gpus=4", "sft.processes=4", "dpo.processes=4")
    data = task_for("sft-data", "tearag-llama3-8b", few, "/data")
    (fault,) = need_faults(data)
    assert fault.startswith("sft_data.engine.tensor_parallel_size is 8, and gpus")
    (fault,) = need_faults(
        task_for("sample", "tearag-llama3-8b", (*few, "engine.tensor_parallel_size=5"), "/data")
    )
    assert fault.startswith("engine.tensor_parallel_size is 5, and gpus is 4, so stage sample-1")


def test_training_asks_for_the_gpus_that_there_are():
    sft = task_for("sft", "embedded")
    assert needs(sft, 1) == Needs(1, 1, "sft.processes")
    assert needs(sft, 0) == Needs(0, 2, "sft.processes")  # two processes on the CPU
    assert not list(need_faults(task_for("sft", "hiprag-qwen2.5-3b", ("gpus=3",))))
