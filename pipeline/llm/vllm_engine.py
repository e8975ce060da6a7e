"""vLLM as a generation engine, on GPUs or, with its CPU build, on a laptop.

Input: token ids, seeds and stop strings. Output: finished segments with the sampled ids and their
log-probabilities. The module drives ``LLMEngine.step`` instead of calling ``LLM.generate``, because
the sampler needs each segment as soon as it ends. A LoRA policy is merged into the base model, or
loaded under a name derived from its content, because vLLM keys its prefix cache by that name
(vllm#42125).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, cast

from pipeline.config.base import EngineConfig
from pipeline.core.errors import DependencyError, EngineError, model_problem
from pipeline.core.model_files import model_hash
from pipeline.llm.adapter_files import LORA_RANKS, adapter_settings, lora_rank
from pipeline.llm.engine import (
    Engine,
    EngineEnded,
    FinishReason,
    GenerationRequest,
    GenerationResult,
)
from pipeline.llm.engine_processes import (
    ENGINE_CORE,
    EngineWatch,
    compute_without_amx,
    ending_with_parent,
    start_error,
)
from pipeline.llm.memory import BATCH_TOKENS
from pipeline.llm.merged_adapter import Served
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.llm.tokens import segment_text

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.engine.arg_utils import EngineArgs

# Tokens per cache block. With the default of the CPU build, 128, 300-token prompts share few
# prefixes.
CPU_BLOCK = 32
_LONGEST_FOLDER = 70  # bytes of the folder of sockets


class VllmEngine(Engine):
    """One vLLM engine of this process; data parallelism uses one process per GPU group.

    On GPUs the model is in processes that this one starts, and that end with it
    (`pipeline.llm.engine_processes`); on CPUs too if ``VLLM_ENABLE_V1_MULTIPROCESSING`` is 1.

    Raises DependencyError when vLLM is missing, EngineError when it cannot load the model.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Path | str,
        *,
        adapter: Path | None = None,
        seed: int = 0,
        workspace: Path | None = None,
    ) -> None:
        import_vllm()
        self.max_model_len = config.max_model_len
        self._lora: object | None = None
        settings: dict[str, object] = {}
        if adapter is not None and config.adapters == "loaded":
            self._lora, settings = _loaded(adapter)
        self._served = Served(config, model, adapter, workspace)
        with TemporaryDirectory(prefix="steep-vllm-") as folder, warnings.catch_warnings():
            # PyTorch warns about code inside vLLM.
            warnings.simplefilter("ignore", FutureWarning)
            cause = Path(folder) / "cause"
            try:
                from vllm.v1.engine.llm_engine import LLMEngine

                arguments = engine_arguments(config, str(self._served.path), seed, settings)
                with ending_with_parent(ENGINE_CORE, str(cause)):
                    self._engine = LLMEngine.from_engine_args(arguments)
            except Exception as error:  # errors of the workers arrive with any type
                self._served.close()
                raise EngineError(start_error(model, error, cause)) from error
        self._watch = EngineWatch(self._engine.engine_core)
        self.tokenizer = model_tokenizer(self._served.path)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises EngineError when vLLM rejects it (for example as too long), EngineEnded when a
        process of the engine has ended.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            parameters = SamplingParams(
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed % 2**63 if request.temperature > 0 else None,
                stop=list(request.stop),
                include_stop_str_in_output=True,
                skip_special_tokens=False,  # a control token must interrupt a stop string
                logprobs=0,  # the log-probability of the sampled token alone
                flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
                structured_outputs=StructuredOutputsParams(structural_tag=request.constraint)
                if request.constraint
                else None,
            )
            self._engine.add_request(
                request.id,
                {"prompt_token_ids": request.prompt_ids},
                parameters,
                lora_request=self._lora,
            )
        except Exception as error:  # SamplingParams and the checks of vLLM raise many types
            if isinstance(error, EngineDeadError) or self._watch.ended:
                raise self._failed(error) from error
            self._engine.abort_request([request.id])  # a part of vLLM may have it
            problem = model_problem(error.__cause__ or error)
            raise EngineError(f"vLLM rejected request {request.id}: {problem}") from error

    def unfinished(self) -> int:
        return int(self._engine.get_num_unfinished_requests())

    def _advance(self) -> list[GenerationResult]:
        try:
            outputs = self._engine.step()
        except Exception as error:  # a worker failed; the engine is unusable from here on
            raise self._failed(error) from error
        return [self._result(output) for output in outputs if output.finished]

    def _result(self, output: RequestOutput) -> GenerationResult:
        segment = output.outputs[0]
        token_ids = list(segment.token_ids)
        flat = segment.logprobs
        finish = _finish(segment.finish_reason, segment.stop_reason)
        return GenerationResult(
            id=output.request_id,
            token_ids=token_ids,
            # Each position lists the sampled token first.
            logprobs=[float(flat.logprobs[start]) for start in flat.start_indices],
            text=segment_text(self.tokenizer, token_ids, finish),
            finish=finish,
        )

    def _failed(self, error: Exception) -> EngineError:
        """The error of a failed engine; vLLM's own names no cause when a process has ended."""
        reason = self._watch.reason()
        if reason is None:
            return EngineEnded(f"vLLM failed while generating: {model_problem(error)}")
        return EngineEnded(f"the process of vLLM's engine {reason}")

    def close(self) -> None:
        """Shut the engine down, so that another one can be opened in this process."""
        from vllm.distributed.parallel_state import (
            destroy_distributed_environment,
            destroy_model_parallel,
        )

        self._watch.close()
        self._engine.engine_core.shutdown()
        del self._engine
        destroy_model_parallel()
        destroy_distributed_environment()
        self._served.close()


def import_vllm() -> None:
    """Import vLLM without its messages; raises DependencyError when it is missing."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # The processes of an engine are spawned: threads of torch and the watch of a parent do not
    # survive a fork.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # A socket's path has at most 107 characters: the folder, and 37 of vLLM. TMPDIR may be longer.
    if len(os.fsencode(gettempdir())) > _LONGEST_FOLDER:
        os.environ.setdefault("VLLM_RPC_BASE_PATH", "/tmp")
    # vLLM configures its logging only after its first modules have emitted warnings.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise DependencyError(
            f"engine.kind is vllm, but vLLM cannot be imported ({model_problem(error)}); install "
            "the extra cpu or gpu (make setup, make setup-gpu), or choose engine.kind=transformers"
        ) from error


def engine_arguments(
    config: EngineConfig, model: str, seed: int, settings: dict[str, object]
) -> EngineArgs:
    """vLLM's arguments for the platform of this machine; ``settings`` belong to an adapter."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # A second process would import every package again and take a core from the first one. With
        # 1 in the environment the engine starts separate processes, as on GPUs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # With few sequences, vLLM splits the attention of one over several threads and adds up the
        # parts. Log-probabilities then differ by up to 0.03 with the others of its batch.
        os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")
        _answer_for_llvmlite()
        compute_without_amx()
        if config.enforce_eager:
            # The ranking of log-probabilities would still be compiled at the first token of every
            # process (17 s on two busy cores), by a C++ compiler that may not be installed.
            import torch._dynamo

            torch._dynamo.config.disable = True
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # for the engine's own processes
        settings = {
            **settings,
            "block_size": CPU_BLOCK,
            "kv_cache_memory_bytes": config.cpu_kv_cache_gib * 2**30,
            # Prefilling a prompt in two chunks rewinds its seeded generator, which CPU generators
            # do not support ("CPU Generator does not use offset", vllm 0.32).
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(config.max_model_len, 4096),
        }
    else:
        settings = {
            **settings,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            # vLLM would take 2,048, because only its own entry points have other defaults.
            "max_num_batched_tokens": max(BATCH_TOKENS, config.max_num_seqs),
        }
    return EngineArgs(
        model=model,
        dtype=config.dtype,
        seed=seed,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        tensor_parallel_size=config.tensor_parallel_size,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",  # under the distribution that was sampled from
        disable_log_stats=True,
        use_tqdm_on_load=False,
        trust_remote_code=False,
        structured_outputs_config={"backend": "xgrammar"},  # the first request would choose it
        **settings,
    )


def _answer_for_llvmlite() -> None:
    """Give llvmlite's library, which numba loads, an empty ``__dict__``.

    vLLM 0.32 reads the ``__dict__`` of everything in every module when it starts on a CPU. This
    library answers with a function instead, and vLLM fails.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab["__dict__"] = {}


def _loaded(adapter: Path) -> tuple[object, dict[str, object]]:
    """A LoRA request named after the adapter's content, and the engine settings that it needs."""
    from vllm.lora.request import LoRARequest

    key, trained = model_hash(adapter), adapter_settings(adapter)
    targets = trained["target_modules"]
    request = LoRARequest(f"policy-{key}", int(key[:7], 16) + 1, str(adapter.resolve()))
    return request, {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(bound for bound in LORA_RANKS if bound >= lora_rank(trained)),
        # Without them vLLM adds LoRA's kernels to every linear layer. A pattern names no layers.
        "lora_target_modules": None
        if isinstance(targets, str)
        else sorted({name.rpartition(".")[2] for name in targets}),
    }


def _finish(reason: str | None, stopped_by: str | int | None) -> FinishReason:
    """vLLM reports "stop" for a stop string (``stopped_by`` is text) and for an end id alike."""
    if reason in ("length", "error"):
        return cast(FinishReason, reason)
    if reason != "stop":
        raise EngineError(f"vLLM ended a request with {reason!r}, expected stop or length")
    return "stop" if isinstance(stopped_by, str) else "eos"
