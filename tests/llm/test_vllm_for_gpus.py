"""What vLLM would do on a GPU, on a machine without one.

Its configuration is made on the platform of CUDA with a named card, and its LoRA kernels run in
Triton's interpreter, which knows float16 and not bfloat16.
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

KERNELS = """
import json, torch, triton, triton.language
import vllm.triton_utils as utils  # without kernels in the build for CPUs
utils.triton, utils.tl = triton, triton.language
from vllm.lora.ops.triton_ops.lora_expand_op import _lora_expand
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
from vllm.lora.ops.triton_ops.lora_shrink_op import _lora_shrink

tokens, width, rank, out, scale = 16, 64, 16, 64, 4.0
torch.manual_seed(0)
x_TW, base_TO = torch.randn(tokens, width).half(), torch.randn(tokens, out).half()
a_RW, b_OR = torch.randn(rank, width).half(), torch.randn(out, rank).half()
adapted_T = torch.tensor([0] * 12 + [-1] * 4, dtype=torch.int32)  # -1: no adapter
meta = LoRAKernelMeta.make(max_loras=1, max_num_tokens=tokens, device="cpu")
meta.prepare_tensors(adapted_T)
arguments = meta.meta_args(tokens, False)
inner = torch.zeros(1, tokens, rank)
_lora_shrink(x_TW, [a_RW[None, None]], inner, *arguments, scale)
found = base_TO.clone()
_lora_expand(inner, [b_OR[None, None]], found, *arguments, offset_start=0, add_inputs=True)
change = scale * x_TW.float() @ a_RW.float().T @ b_OR.float().T
change[12:] = 0
expected = base_TO.float() + change
print(json.dumps({
    "away": float((found.float() - expected).abs().max() / expected.abs().max()),
    "unadapted": bool((found[12:] == base_TO[12:]).all()),
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
def test_the_kernels_of_lora_add_the_adapter_to_the_tokens_that_have_one() -> None:
    told = told_by(KERNELS, TRITON_INTERPRET="1")
    assert told["away"] < 2e-3
    assert told["unadapted"]


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
