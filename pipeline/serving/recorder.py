"""Record the conversations of agents: the plain policy, with every turn appended to a file.

A request continues the turn before if its messages begin with the messages of that turn and its
reply. Its prompt is then the ids that the engine saw and sampled, followed by the frame that the
chat template writes around the new messages, so that the prompt starts with them exactly. Any other
request is rendered as a whole and starts a trajectory, with the reason. Reasoning that a client
leaves out of the history stays in the ids, as in roll-outs.

Headers of a request, all optional: ``x-steep-answers``, gold answers as a JSON list or one text;
``x-steep-conversation``, an id for turns that belong together although they are not joined.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, FiniteFloat
from starlette.responses import JSONResponse, Response

from pipeline.conversations.chat_template import Frame
from pipeline.conversations.messages import REASONING, Message, uniform
from pipeline.core.atomic import json_text
from pipeline.core.errors import EngineError, InputError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Question, Span
from pipeline.grammars.spans import common_length
from pipeline.grammars.tokens import mismatch
from pipeline.llm.engine import GenerationResult
from pipeline.rollout.answering import question_record
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.recorded import RecordedReward, RecordedTurn, read_recording
from pipeline.serving.completions import NotFound, completion_routes, respond
from pipeline.serving.turns import (
    PlainModel,
    Prepared,
    Turn,
    TurnRequest,
    numbered,
    received,
    shown,
)

MOST_OPEN = 2048  # conversations that can be continued; the oldest are forgotten
ANSWERS, CONVERSATION = "x-steep-answers", "x-steep-conversation"
_DATES = re.compile(r"\d+|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*", re.I)


class Log:
    """The file of a recording, to which only one process appends whole lines.

    Raises InputError when another process appends to it, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as failing:
            self._file = failing.enter_context(path.open("ab"))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another steep record writes it; name another --output"
                raise InputError.at(path, None, problem) from None
            # A kill may have cut the last line off.
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
            rows = list(read_recording(path))
            failing.pop_all()
        self.names = {row.conversation for row in rows}
        self.names |= {row.turn for row in rows if isinstance(row, RecordedTurn)}

    def close(self) -> None:
        self._file.close()

    def append(self, row: RecordedTurn | RecordedReward) -> None:
        self._file.write((json_text(asdict(row)) + "\n").encode("utf-8"))
        self._file.flush()
        self.names.add(row.conversation)
        if isinstance(row, RecordedTurn):
            self.names.add(row.turn)


@dataclass(eq=False)
class _Open:
    """The last turn of a conversation, which a request may continue."""

    turn: str
    conversation: str
    messages: list[Message]  # numbered
    calls: list[str]  # the ids of calls that the client got
    tools: list[dict[str, Any]]
    so_far: PartialTrajectory
    ended: bool  # whether the turn has its end


@dataclass(frozen=True)
class _Placed(Prepared):
    """A request and its place: it continues ``before``, or starts a trajectory for ``reason``."""

    asked: TurnRequest
    messages: list[Message]  # numbered
    calls: list[str]
    new: list[Message]  # as the template got them
    before: _Open | None
    frame: Frame | None
    reason: str | None
    conversation: str | None
    question: Question | None


class _Reward(BaseModel):
    conversation: str
    reward: FiniteFloat


class RecordedModel(PlainModel):
    """The plain policy, which appends its turns to ``log``.

    ``policy_id`` is its fingerprint. ``questions`` with gold answers are found by the first message
    of the user, which is a question or contains it.
    """

    def __init__(
        self, *arguments: Any, log: Log, policy_id: str, questions: Sequence[Question] = ()
    ) -> None:
        super().__init__(*arguments)
        self._log = log
        self._policy_id = policy_id
        self._questions = {_plain(question.question): question for question in questions}
        self._open: OrderedDict[str, list[_Open]] = OrderedDict()  # by the user's first message

    def reward(self, body: bytes) -> dict[str, Any]:
        """Record a reward; raises NotFound for a conversation that was not recorded."""
        given = _Reward.model_validate_json(body)
        if given.conversation not in self._log.names:
            raise NotFound(
                f"there is no conversation {given.conversation!r:.80}; use the id of any of its "
                f"completions, or its {CONVERSATION}"
            )
        self._log.append(RecordedReward(given.conversation, given.reward))
        return {"conversation": given.conversation, "reward": given.reward}

    def prepare(self, asked: TurnRequest, headers: Mapping[str, str]) -> Prepared:
        template, parser = self.declared(asked.declared)
        messages = received(asked)
        calls = [str(call.get("id")) for each in messages for call in each.get("tool_calls", ())]
        messages = numbered(messages)
        known = self._open.get(_first_user(messages), [])
        before, reason = _joined(known, messages, calls, asked.declared)
        frame = None
        if before is not None and reason is None:
            turn, inserted = before.messages[-1], messages[len(before.messages) :]
            frame, new = template.frame(turn, inserted), template.inserted_messages(turn, inserted)
            ids = [*before.so_far.prompt_ids, *before.so_far.token_ids, *frame.ids]
        else:
            new = shown(template, messages)
            ids = template.ids(new)
        own = headers.get(CONVERSATION) or (before.conversation if before else None)
        return _Placed(
            parser, self.request(asked, ids), asked, messages, calls, new, before, frame, reason,
            own, self._question(messages, headers),
        )  # fmt: skip

    def _question(self, messages: Sequence[Message], headers: Mapping[str, str]) -> Question | None:
        """The question of a conversation with its gold answers, if they are known."""
        text = _first_user(messages)
        if given := headers.get(ANSWERS):
            answers = parse_json(given, ANSWERS) if given.startswith("[") else [given]
            return replace(
                question_record(text), dataset="recorded", answers=[str(each) for each in answers]
            )
        message = _plain(text)
        inside = (known for known in self._questions if known in message)
        return self._questions.get(max(inside, key=len, default=""))

    def finish(self, prepared: Prepared, result: GenerationResult) -> Turn:
        turn = super().finish(prepared, result)
        assert isinstance(prepared, _Placed)
        self._keep(prepared, turn)
        return turn

    def _keep(self, placed: _Placed, turn: Turn) -> None:
        """Append the turn to the log, and let later requests continue it."""
        request, result = placed.request, turn.result
        tokenizer, before, frame = self.tokenizer(), placed.before, placed.frame
        key = _first_user(placed.messages)
        known = self._open.setdefault(key, [])
        reason = placed.reason
        if before is not None and frame is not None and before in known:
            known.remove(before)
            so_far, after = before.so_far, before.turn
        else:
            reason = "continued twice" if frame is not None else reason
            question = placed.question or question_record(key or "none")
            so_far = PartialTrajectory(question, 0, request.seed, request.prompt_ids)
            frame, after = None, None
        text, tokens, results = (
            len(so_far.output), len(so_far.token_ids), len(so_far.per_retrieval)
        )  # fmt: skip
        if frame is not None:
            lengths = [
                length
                for length, message in zip(frame.lengths, placed.new, strict=True)
                if message["role"] == "tool"
            ]
            so_far.append_frame(frame, [], lengths, tokenizer)
        so_far.append_segment(result)
        problem = mismatch(
            tokenizer, so_far.output, so_far.spans, so_far.token_ids, so_far.token_spans
        )
        if problem is not None:
            raise EngineError(f"turn {result.id}: {problem}; please report it")
        conversation = placed.conversation or result.id
        [reply] = uniform([turn.message])
        messages = numbered([*placed.messages, reply])
        self._log.append(
            RecordedTurn(
                turn=result.id,
                conversation=conversation,
                after=after,
                reason=reason,
                policy=self._policy_id,
                messages=[_brief(message) for message in (*placed.new, messages[-1])],
                tools=placed.asked.declared,
                prompt_ids=[] if after else request.prompt_ids,
                output=so_far.output[text:],
                spans=_from(so_far.spans, text),
                token_ids=so_far.token_ids[tokens:],
                token_spans=_from(so_far.token_spans, tokens),
                logprobs=so_far.logprobs[tokens:],
                retrieved=so_far.per_retrieval[results:],
                finish=result.finish,
                problem=turn.problem,
                seed=request.seed,
                temperature=request.temperature,
                top_p=request.top_p,
                question=None if after else placed.question,
            )
        )
        calls = [call["id"] for call in turn.message.get("tool_calls", ())]
        known.append(
            _Open(
                result.id, conversation, messages, placed.calls + calls, placed.asked.declared,
                so_far, result.finish == "eos",
            )
        )  # fmt: skip
        self._open.move_to_end(key)
        while sum(map(len, self._open.values())) > MOST_OPEN:
            self._open.popitem(last=False)


def recorder_routes(model: RecordedModel, name: str) -> APIRouter:
    """The protocol for chat completions, for any name of a model, and ``POST /reward``."""

    async def complete(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        return await model.complete(TurnRequest.model_validate_json(body), headers)

    router = completion_routes([name], complete)

    @router.post("/reward")
    async def reward(request: Request) -> Response:
        async def given(body: bytes) -> Response:
            return JSONResponse(await model.beside(model.reward, body))

        return await respond(request, given)

    return router


def _joined(
    known: Sequence[_Open],
    messages: Sequence[Message],
    calls: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
) -> tuple[_Open | None, str | None]:
    """The turn before a request, and why the request does not continue it, None if it does."""
    length = len(messages)
    while length and messages[length - 1]["role"] != "assistant":
        length -= 1
    if not length:
        return None, None
    if not known:
        return None, "unknown history"
    sent = [_without_reasoning(message) for message in messages]

    def likeness(one: _Open) -> tuple[bool, int, int]:
        same = common_length([_without_reasoning(message) for message in one.messages], sent)
        # Equal turns of several samples of a question differ in the ids of their calls.
        return same == len(one.messages) == length, same, common_length(one.calls, calls)

    nearest = max(known, key=likeness)
    _, at, _ = likeness(nearest)
    if at < min(length, len(nearest.messages)):
        return nearest, _difference(nearest.messages[at], messages[at])
    if at < length:
        return nearest, "history rewritten"
    if len(nearest.messages) > length:
        return nearest, "continued twice"
    for one, other in zip(nearest.messages, messages, strict=False):
        if other.get(REASONING[0]) not in (None, one.get(REASONING[0])):
            return nearest, "reasoning changed"
    if list(tools) != nearest.tools:
        ordered = [sorted(map(json.dumps, each)) for each in (tools, nearest.tools)]
        return nearest, "tools re-ordered" if ordered[0] == ordered[1] else "tools changed"
    return nearest, None if nearest.ended else "the turn before was cut off"


def _difference(kept: Message, sent: Message) -> str:
    if kept["role"] != sent["role"] or kept["role"] not in ("system", "user"):
        return "history rewritten"
    if _DATES.sub("", kept["content"]) == _DATES.sub("", sent["content"]):
        return "dates changed"
    return f"{kept['role']} message changed"


def _without_reasoning(message: Message) -> Message:
    kept = {key: value for key, value in message.items() if key not in REASONING}
    return kept | {"content": message["content"].strip()}


def _brief(message: Message) -> Message:
    """A message with its reasoning under one name."""
    return {key: value for key, value in message.items() if key not in REASONING[1:]}


def _from(spans: Sequence[Span], start: int) -> list[Span]:
    """The spans from ``start`` on, counted from there."""
    return [(max(a, start) - start, b - start, writer) for a, b, writer in spans if b > start]


def _first_user(messages: Sequence[Message]) -> str:
    return next((str(each["content"]) for each in messages if each["role"] == "user"), "")


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
