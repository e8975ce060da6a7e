"""One engine for roll-outs and for single turns, which other threads request.

Input: a roll-out's requests, by `add`, and turns, by `submit`. Output: the results of the requests
from `step`, and of the turns through ``deliver``. All are generated in the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pipeline.llm.engine import Engine, EngineEnded, GenerationRequest, GenerationResult

_FAILED = "the grammar of tool_choice or response_format leads nowhere; simplify its JSON schema"


@dataclass(frozen=True)
class Refused:
    """Why a turn or a question has no result; ``ours``: the request was not at fault."""

    id: str
    problem: str
    ours: bool = False


class SharedEngine(Engine):
    """``deliver`` gets the result of each turn, in the thread that calls `step`."""

    def __init__(self, engine: Engine) -> None:
        self.tokenizer, self.max_model_len = engine.tokenizer, engine.max_model_len
        self.deliver: Callable[[GenerationResult | Refused], object] = lambda _: None
        self._engine = engine
        self._submitted: SimpleQueue[GenerationRequest] = SimpleQueue()
        self._turns: set[str] = set()

    def submit(self, turn: GenerationRequest) -> None:
        """Queue a turn; any thread may call this. Its id differs from those of all requests."""
        self._submitted.put(turn)

    def add(self, request: GenerationRequest) -> None:
        self._engine.add(request)

    def unfinished(self) -> int:
        return self._engine.unfinished() - len(self._turns)

    def close(self) -> None:
        self._engine.close()

    def sample_turns(self, until: Callable[[], bool]) -> None:
        """Generate until no turn is left, or ``until`` is true."""
        while (self._turns or not self._submitted.empty()) and not until():
            self.step()

    def _advance(self) -> list[GenerationResult]:
        with suppress(Empty):
            while True:
                turn = self._submitted.get_nowait()
                try:
                    self._engine.add(turn)
                except EngineEnded:
                    raise
                except Exception as error:  # noqa: BLE001 - concerns this turn alone
                    self.deliver(Refused(turn.id, str(error) or type(error).__name__))
                else:
                    self._turns.add(turn.id)
        results = self._engine.step() if self._engine.unfinished() else []
        turns = [result for result in results if result.id in self._turns]
        for turn_result in turns:
            self._turns.remove(turn_result.id)
            failed = turn_result.finish == "error"
            self.deliver(Refused(turn_result.id, _FAILED) if failed else turn_result)
        return [result for result in results if result not in turns]
