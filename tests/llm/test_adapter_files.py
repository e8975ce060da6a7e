"""Adapters that PEFT would ignore, in whole or in part, are refused wherever they enter."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import EngineConfig
from pipeline.config.policy import Lora
from pipeline.core.errors import ConfigError, InputError
from pipeline.llm.adapter_files import (
    check_adapter,
)
from pipeline.llm.merged_adapter import Served
from pipeline.llm.open_engine import open_engine
from tests.llm.adapter_defects import BROKEN, IGNORED, Defect

DEFECTS = [pytest.param(defect, id=defect.name) for defect in (*IGNORED, *BROKEN)]


@pytest.mark.parametrize("defect", DEFECTS)
def test_an_adapter_that_peft_would_ignore_or_not_load_is_refused(
    defect: Defect, model: Path, adapter: Path, tmp_path: Path
) -> None:
    broken = defect.write(adapter, tmp_path / "adapter")
    with pytest.raises(InputError) as error:
        check_adapter(broken, model)
    assert str(broken) in str(error.value)


@pytest.mark.parametrize("adapters", ["merged", "loaded"])
def test_no_engine_opens_with_an_adapter_that_changes_nothing(
    adapters: str, model: Path, adapter: Path, tmp_path: Path
) -> None:
    settings = EngineConfig.model_validate(
        {"kind": "transformers", "dtype": "float32", "adapters": adapters}
    )
    broken = IGNORED[0].write(adapter, tmp_path / "broken")
    with pytest.raises(InputError):
        open_engine(settings, model, adapter=broken, seed=0, workspace=tmp_path / "merged")
    assert not any(path.is_dir() for path in tmp_path.glob("merged/*"))


def test_no_adapter_is_merged_whose_product_vanishes(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    """Both factors are above 0, and every number of the product is below the smallest float."""
    shrink = Defect("tiny", lambda tensors: {name: tensors[name] * 1e-30 for name in tensors})
    tiny = shrink.write(adapter, tmp_path / "tiny")
    with pytest.raises((InputError, ConfigError), match=r"changes no weight|change nothing"):
        Served(EngineConfig(kind="transformers", dtype="float32"), model, tiny, tmp_path / "merged")


@pytest.mark.parametrize(
    "defect", [*IGNORED[:5], IGNORED[6], IGNORED[9]], ids=lambda defect: defect.name
)
def test_training_does_not_continue_an_adapter_that_is_not_loaded_whole(
    defect: Defect, model: Path, adapter: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    from pipeline.training.lora import continue_adapter

    lora = Lora(r=8, alpha=32, targets=("q_proj", "v_proj"))
    broken = defect.write(adapter, tmp_path / "adapter")
    with pytest.raises(InputError):
        continue_adapter(AutoModelForCausalLM.from_pretrained(model), broken, lora)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_truncated_file_is_named(name: str, model: Path, adapter: Path, tmp_path: Path) -> None:
    path = Defect("none").write(adapter, tmp_path / "adapter")
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=f"{name}.*(not valid JSON|not a readable safetensors)"):
        check_adapter(path, model)
