"""An engine that emits scripted text token by token, for tests and simulations.

The script maps the end of the prompt (or the whole request, through a function) to the next
segment. Everything else matches a real engine: many requests in flight, one token per request and
step, stop strings that may end inside a token, token budgets, and an end-of-sequence id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipeline.core.errors import EngineError
from pipeline.llm.engine import Engine, FinishReason, GenerationRequest, GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import decode, segment_text

Script = Mapping[str, str] | Callable[[str, GenerationRequest], str]


@dataclass
class _InProgress:
    request: GenerationRequest
    planned_ids: list[int]
    emitted_ids: list[int] = field(default_factory=list)


class ScriptedEngine(Engine):
    """Emits the segments of ``script``, each with the end-of-sequence id unless stopped before.

    A mapping is searched for the longest key that the decoded prompt ends with. Log-probabilities
    are 0 nats, because a script is deterministic.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        *,
        max_model_len: int = 4096,
        max_num_seqs: int = 256,
    ) -> None:
        self.script = script
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self._in_progress: dict[str, _InProgress] = {}

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises EngineError when the id is in use or the script has no segment for the prompt.
        """
        if request.id in self._in_progress:
            raise EngineError(f"request {request.id} is already in progress; use unique ids")
        prompt = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        segment = self._segment(prompt, request)
        planned = self.tokenizer(segment, add_special_tokens=False)["input_ids"]
        eos = self.tokenizer.eos_token_id
        assert eos is not None
        self._in_progress[request.id] = _InProgress(request, [*planned, eos])

    def _segment(self, prompt: str, request: GenerationRequest) -> str:
        if callable(self.script):
            return self.script(prompt, request)
        endings = [key for key in self.script if prompt.endswith(key)]
        if not endings:
            raise EngineError(
                f"the script has no segment for a prompt that ends in {prompt[-80:]!r}"
            )
        return self.script[max(endings, key=len)]

    def unfinished(self) -> int:
        return len(self._in_progress)

    def close(self) -> None:
        self._in_progress.clear()

    def _advance(self) -> list[GenerationResult]:
        results = []
        for item in list(self._in_progress.values())[: self.max_num_seqs]:
            item.emitted_ids.append(item.planned_ids[len(item.emitted_ids)])
            finish = self._finish(item)
            if finish is not None:
                del self._in_progress[item.request.id]
                results.append(
                    GenerationResult(
                        id=item.request.id,
                        token_ids=item.emitted_ids,
                        logprobs=[0.0] * len(item.emitted_ids),
                        text=segment_text(self.tokenizer, item.emitted_ids, finish),
                        finish=finish,
                    )
                )
        return results

    def _finish(self, item: _InProgress) -> FinishReason | None:
        if item.emitted_ids[-1] == self.tokenizer.eos_token_id:
            return "eos"
        text = decode(self.tokenizer, item.emitted_ids)
        if any(stop in text for stop in item.request.stop):
            return "stop"
        return "length" if len(item.emitted_ids) >= item.request.max_tokens else None
