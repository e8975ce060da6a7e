"""Checks of adapters from elsewhere: the engine, the base model and the lineage, before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.engine.check.collect import check_tasks
from pipeline.engine.check.devices import Machine
from tests.llm.adapter_kinds import KINDS, LLAMA, Settings, adapter_of_kind
from tests.tasks.declared import stages

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SHAPE = ("lora.r=4", "lora.alpha=8", "lora.targets=[q_proj, v_proj]")
TEACHER = "sft_data.rejection_sampling.teacher"
QUICK = ("plain", "dora", "pissa", "bias of LoRA")
# What vLLM would ignore, or refuse at the first request, of an adapter that it loads itself.
NOT_LOADED = {
    "dora": "use_dora: True",
    "embedding with dora": "use_dora: True",
    "pissa": "init_lora_weights: 'pissa'",
    "all biases": "bias: 'all'",
    "bias of LoRA": "lora_bias: True",
    "saved norm": "modules_to_save: ['norm']",
    "saved head": "modules_to_save: ['lm_head']",
    "saved embedding": "modules_to_save: ['embed_tokens']",
    "saved both": "modules_to_save: ['embed_tokens', 'lm_head']",
    "embedding, kept tied": "ensure_weight_tying: True",
    "tokens": "trainable_token_indices: {'embed_tokens': [5, 6, 7]}",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return LLAMA.write(tmp_path_factory.mktemp("base") / "base", tied=True)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter_of_kind("plain", LLAMA, base, tmp_path_factory.mktemp("adapter"))


def faults(stage: str, base: Path, tmp_path: Path, *overrides: str) -> Sequence[str]:
    """The faults of the stages that copy a policy, without those of other stages."""
    common = (f"model.base={base}", f"runs_dir={tmp_path / 'runs'}", *SHAPE)
    tasks = stages("embedded", [stage], (*common, *overrides))
    found = check_tasks(tasks, Machine((), here=False)).faults
    return [fault for fault in found if fault.startswith((TEACHER, "start"))]


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_an_adapter_that_vllm_would_not_load_is_a_fault_of_loaded_and_not_of_merged(
    kind: str, base: Path, tmp_path: Path
) -> None:
    adapter = adapter_of_kind(kind, LLAMA, base, tmp_path / "adapter")
    given = f"sft_data.rejection_sampling={{teacher: {adapter}}}"
    loaded = faults("given-policy", base, tmp_path, given, "engine.adapters=loaded")
    merged = faults("given-policy", base, tmp_path, given)
    by_transformers = ("engine.adapters=loaded", "engine.kind=transformers")
    assert faults("given-policy", base, tmp_path, given, *by_transformers) == []
    named = f"{TEACHER} names {adapter}: {adapter}"
    loads = (
        f"{named}/adapter_config.json: engine.adapters is loaded, and vLLM loads no adapter with"
    )
    unread = NOT_LOADED.get(kind)
    assert loaded == ([f"{loads} {unread}; set engine.adapters: merged"] if unread else [])
    if kind == "bias of LoRA":
        (fault,) = merged
        assert fault.startswith(f"{named} cannot be merged: ")
    else:
        assert merged == []


def test_an_adapter_of_the_shape_of_lora_is_a_start(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    assert faults("start", base, tmp_path, f"start={adapter}") == []
    (fault,) = faults("start", base, tmp_path, f"start={adapter}", "lora.r=8")
    assert "set lora to its values" in fault


@pytest.mark.parametrize(
    ("kept", "changed", "lineage", "words"),
    [
        (100, {}, {}, "not a readable safetensors file"),
        (None, {"r": 3}, {}, "does not fit model.base"),
        (None, {"rank_pattern": {"x": "8"}}, {}, "is {'x': '8'}; expected whole numbers"),
        (None, {}, {"grammar": "search-r1", "format": "tags"}, "grammar search-r1 in format tags"),
    ],
    ids=["truncated", "another rank", "rank as text", "another grammar"],
)
def test_a_start_that_does_not_fit_is_known_before_the_run(
    base: Path, adapter: Path, tmp_path: Path, kept: int | None, changed: Settings,
    lineage: Settings, words: str,
) -> None:  # fmt: skip
    policy = shutil.copytree(adapter, tmp_path / "policy")
    weights, settings = policy / "adapter_model.safetensors", policy / "adapter_config.json"
    weights.write_bytes(weights.read_bytes()[:kept])
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changed))
    if lineage:
        (policy / "lineage.json").write_text(json.dumps({"policy": "p"} | lineage))
    (fault,) = faults("start", base, tmp_path, f"start={policy}")
    assert fault.startswith(f"start names {policy}: ")
    assert words in fault
