"""What vLLM would do on a GPU, on a machine without one.

Its configuration is made on the platform of CUDA with a named card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.llm.memory import BATCH_TOKENS

ROOT = Path(__file__).resolve().parents[2]
# The model is imported before the platform changes, because its modules ask CUDA for its kernels.
CONFIGURED = """
import json, sys, types
from pathlib import Path
from pipeline.llm.vllm_engine import _loaded, engine_arguments, import_vllm
from pipeline.config.base import EngineConfig

import_vllm()
import vllm.model_executor.models.llama
import vllm.platforms as platforms
sys.modules.setdefault("vllm._C_stable_libtorch", types.ModuleType("kernels"))
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class H100(NonNvmlCudaPlatform):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * 2**30)
    device_count = classmethod(lambda cls: 1)


before, card = platforms.current_platform, H100()
platforms._current_platform = card
for name, module in list(sys.modules.items()):
    if name.startswith("vllm") and vars(module).get("current_platform") is before:
        module.current_platform = card
config = EngineConfig(kind="vllm", max_model_len=512, max_num_seqs=64, gpu_memory_utilization=0.75)
_, settings = _loaded(Path(sys.argv[2]))
made = engine_arguments(config, sys.argv[1], 0, settings).create_engine_config()
print(json.dumps({
    "device": made.device_config.device_type,
    "batch": made.scheduler_config.max_num_batched_tokens,
    "sequences": made.scheduler_config.max_num_seqs,
    "chunked": made.scheduler_config.enable_chunked_prefill,
    "share": made.cache_config.gpu_memory_utilization,
    "prefixes": made.cache_config.enable_prefix_caching,
    "targets": made.lora_config.target_modules,
    "rank": made.lora_config.max_lora_rank,
    "logprobs": made.model_config.logprobs_mode,
}))
"""


def told_by(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    merged = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=merged)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
def test_an_engine_on_a_gpu_takes_the_batch_of_the_plan_and_adapts_the_trained_layers(
    tmp_path: Path,
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"r": 8, "target_modules": ["v_proj", "model.layers.0.self_attn.q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    made = told_by(CONFIGURED, str(ROOT / "data/tiny_reader"), str(adapter))
    assert made == {
        "device": "cuda",
        "batch": BATCH_TOKENS,
        "sequences": 64,
        "chunked": True,
        "share": 0.75,
        "prefixes": True,
        "targets": ["q_proj", "v_proj"],
        "rank": 8,
        "logprobs": "processed_logprobs",
    }
