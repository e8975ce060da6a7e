"""transformers' ``generate`` as an engine, for machines without vLLM; it must be chosen explicitly.

Input and output are as for every engine. Requests are generated in left-padded batches that run to
completion (no continuous batching). Every request has a separate random generator: the argmax of
its logits plus Gumbel noise from that generator is a sample from their softmax, so the requests of
a batch share no random state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.base import EngineConfig
from pipeline.core.errors import EngineError, model_problem
from pipeline.core.gpus import cuda_works
from pipeline.core.language_models import load_language_model
from pipeline.llm.engine import Engine, FinishReason, GenerationRequest, GenerationResult
from pipeline.llm.merged_adapter import Served
from pipeline.llm.tokenizer import Tokenizer, model_tokenizer
from pipeline.llm.tokens import decode, segment_text

if TYPE_CHECKING:
    import torch

_ROWS = 16  # of a pass that reads; the batches that write took longer on a CPU
_LEAST_TEMPERATURE = 0.01  # as in vLLM; logits divided by less overflow


class TransformersEngine(Engine):
    """A causal language model under transformers, on a GPU if one is available.

    Raises EngineError when the model cannot be loaded, and what `cuda_works` raises.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Path | str,
        *,
        adapter: Path | None = None,
        workspace: Path | None = None,
    ) -> None:
        import torch

        self.max_model_len = config.max_model_len
        self._batch = config.max_num_seqs
        self._waiting: list[_BatchRow] = []
        self._device = "cuda" if cuda_works() else "cpu"
        self._served = Served(config, model, adapter, workspace)
        try:
            path, dtype = self._served.path, getattr(torch, config.dtype)
            self.tokenizer = model_tokenizer(path)
            loaded = load_language_model(path, dtype=dtype)
            if adapter is not None and config.adapters == "loaded":
                from peft import PeftModel

                loaded = PeftModel.from_pretrained(loaded, str(adapter))
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            self._served.close()
            raise EngineError(
                f"transformers could not load {model}: {model_problem(error)}"
            ) from error
        self._model: Any = loaded.to(self._device).eval()
        self._eos = _ids(self._model.generation_config.eos_token_id, self.tokenizer.eos_token_id)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises EngineError for settings that no token can be sampled with, for a constraint, and if
        prompt plus segment exceed the context length.
        """
        if request.constraint is not None:
            raise EngineError(
                "transformers samples without a grammar, which tool_choice and response_format "
                "need; set engine.kind: vllm, or leave them at auto and text"
            )
        sampled = 0 <= request.temperature < math.inf and 0 < request.top_p <= 1
        if not (sampled and request.prompt_ids and request.max_tokens > 0):
            raise EngineError(
                f"request {request.id} has temperature {request.temperature}, top_p "
                f"{request.top_p}, {request.max_tokens} tokens at most and "
                f"{len(request.prompt_ids)} before; nothing can be sampled"
            )
        if len(request.prompt_ids) + request.max_tokens > self.max_model_len:
            raise EngineError(
                f"request {request.id} needs {len(request.prompt_ids)} + {request.max_tokens} "
                f"tokens; engine.max_model_len is {self.max_model_len}; raise it"
            )
        self._waiting.append(_BatchRow(request, self._eos, self.tokenizer, self._device))

    def unfinished(self) -> int:
        return len(self._waiting)

    def logprobs(self, sequences: Sequence[tuple[list[int], int]]) -> list[list[float]]:
        """Log-probabilities (nats) of the last tokens of sequences, each given with their number.

        Sequences of similar length share a batch; logits are computed at these tokens alone.
        """
        import torch

        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number][0]))
        found: dict[int, list[float]] = {}
        for start in range(0, len(order), _ROWS):
            numbers = order[start : start + _ROWS]
            most = max(len(sequences[number][0]) for number in numbers)
            kept = max(sequences[number][1] for number in numbers) + 1
            ids_BT = torch.zeros((len(numbers), most), dtype=torch.long, device=self._device)
            mask_BT = torch.zeros_like(ids_BT)
            for row, number in enumerate(numbers):
                ids = sequences[number][0]
                ids_BT[row, most - len(ids) :] = torch.tensor(ids)
                mask_BT[row, most - len(ids) :] = 1
            with torch.inference_mode():
                logits_BKV = self._model(
                    input_ids=ids_BT,
                    attention_mask=mask_BT,
                    position_ids=(mask_BT.cumsum(-1) - 1).clamp(min=0),
                    logits_to_keep=kept,
                ).logits
            logps_BKV = logits_BKV[:, :-1].float().log_softmax(-1)
            targets_BK1 = ids_BT[:, most - kept + 1 :, None]
            logps_BK = logps_BKV.gather(-1, targets_BK1)[..., 0].tolist()
            for values, number in zip(logps_BK, numbers, strict=True):
                found[number] = values[len(values) - sequences[number][1] :]
        return [found[number] for number in range(len(sequences))]

    def close(self) -> None:
        self._waiting.clear()
        del self._model
        self._served.close()

    def _advance(self) -> list[GenerationResult]:
        batch, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
        return self._generate(batch) if batch else []

    def _generate(self, rows: Sequence[_BatchRow]) -> list[GenerationResult]:
        import torch
        from transformers import (
            GenerationConfig,
            LogitsProcessor,
            LogitsProcessorList,
            StoppingCriteria,
            StoppingCriteriaList,
        )

        batch = [row.request for row in rows]
        width = max(len(request.prompt_ids) for request in batch)

        class Choose(LogitsProcessor):
            """Sample each row's next token and mask all others."""

            def __call__(self, input_ids: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
                forced_BV = torch.full_like(scores_BV, -torch.inf)
                for number, row in enumerate(rows):
                    if row.finish is None:
                        forced_BV[number, row.choose(scores_BV[number])] = 0.0
                    else:
                        forced_BV[number, 0] = 0.0  # padding after the end, never read
                return forced_BV

        class Done(StoppingCriteria):
            """A mask [B] of the rows that have ended."""

            def __call__(
                self, input_ids: torch.Tensor, scores_BV: torch.Tensor, **_: object
            ) -> torch.Tensor:
                done = [row.finish is not None for row in rows]
                return torch.tensor(done, device=input_ids.device)

        ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for number, request in enumerate(batch):
            ids_BT[number, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask_BT[number, width - len(request.prompt_ids) :] = 1
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids_BT.to(self._device),
                attention_mask=mask_BT.to(self._device),
                generation_config=GenerationConfig(
                    max_new_tokens=max(request.max_tokens for request in batch),
                    do_sample=False,
                    pad_token_id=0,
                    eos_token_id=None,
                ),
                logits_processor=LogitsProcessorList([Choose()]),
                stopping_criteria=StoppingCriteriaList([Done()]),
            )
        return [row.result() for row in rows]


class _BatchRow:
    """One request of a batch: its random generator, the ids so far, and the finish reason."""

    def __init__(
        self, request: GenerationRequest, eos: frozenset[int], tokenizer: Tokenizer, device: str
    ) -> None:
        import torch

        self.request = request
        self.eos = eos
        self.tokenizer = tokenizer
        self.generator = torch.Generator(device).manual_seed(request.seed % 2**63)
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: FinishReason | None = None
        # A stop string of n bytes spans at most n tokens. A control token inside interrupts it.
        self.tail = max((len(stop.encode()) for stop in request.stop), default=1)

    def choose(self, logits_V: torch.Tensor) -> int:
        """Sample the next token at the request's temperature and top-p; record and return it."""
        import torch

        logits_V = logits_V.float()
        if self.request.temperature > 0:
            temperature = max(self.request.temperature, _LEAST_TEMPERATURE)
            logits_V = _nucleus(logits_V / temperature, self.request.top_p)
            noise_V = torch.empty_like(logits_V).exponential_(generator=self.generator)
            token = int((logits_V - noise_V.log()).argmax())
        else:
            token = int(logits_V.argmax())
        self.token_ids.append(token)
        self.logprobs.append(float(logits_V.log_softmax(-1)[token]))
        self.finish = self._ended(token)
        return token

    def _ended(self, token: int) -> FinishReason | None:
        if token in self.eos:
            return "eos"
        ending = decode(self.tokenizer, self.token_ids[-self.tail :])
        if any(stop in ending for stop in self.request.stop):
            return "stop"
        return "length" if len(self.token_ids) >= self.request.max_tokens else None

    def result(self) -> GenerationResult:
        assert self.finish is not None  # generate returns when every row has ended
        return GenerationResult(
            id=self.request.id,
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            text=segment_text(self.tokenizer, self.token_ids, self.finish),
            finish=self.finish,
        )


def _nucleus(logits_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """Logits [V], -inf outside the most probable tokens that reach ``top_p``; one stays."""
    if top_p >= 1:
        return logits_V
    ordered_V, order_V = logits_V.sort(descending=True)
    probability_V = ordered_V.softmax(-1)
    before_V = probability_V.cumsum(-1) - probability_V
    return logits_V.index_fill(-1, order_V[1:][before_V[1:] >= top_p], float("-inf"))


def _ids(*values: int | list[int] | None) -> frozenset[int]:
    """The union of end-of-sequence ids; a generation configuration may list several."""
    ids: set[int] = set()
    for value in values:
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)
