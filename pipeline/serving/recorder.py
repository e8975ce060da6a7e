"""Record the conversations of agents: the plain policy, with every turn appended to a file.

A request belongs to a conversation if that is certain: a header names it; or its messages begin
with the whole of it, the ids of calls included, and no other conversation with the same question
has had the same reply; or they have calls of no other conversation, whose ids are random. Any other
request with a history starts a conversation of its own, and its reason begins with "ambiguous" if
it resembles a conversation.

Within its conversation, a request continues the turn before if its messages begin with the messages
of that turn and its reply. Its prompt is then the ids that the engine saw and sampled, followed by
the frame that the chat template writes around the new messages, so that the prompt starts with them
exactly. Any other request is rendered as a whole and starts a trajectory, with the reason.
Reasoning that a client leaves out of the history stays in the ids, as in roll-outs.

Headers of a request in UTF-8, all optional: ``x-steep-answers``, gold answers as a JSON list or one
text; ``x-steep-conversation``, an id of the conversation, or the id of a completion in it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, FiniteFloat
from starlette.responses import JSONResponse, Response

from pipeline.core.atomic import json_text
from pipeline.core.errors import STDIN, EngineError, InputError, Place
from pipeline.core.input_files import parse_json
from pipeline.core.records import Question, Span
from pipeline.core.spans import common_length
from pipeline.core.text import one_line
from pipeline.knowledge.corpus.raw_records import encodable
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokens import mismatch
from pipeline.rollout.conversations.chat_template import Frame
from pipeline.rollout.conversations.messages import REASONING, Message, uniform
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.recorded import (
    RecordedReward,
    RecordedTurn,
    asked_question,
    read_recordings,
)
from pipeline.serving.completions import Body, NotFound, Watch, completion_routes, respond
from pipeline.serving.policy import Busy
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
_OWN = "x-steep-"  # how the names of the headers begin
ANSWERS, CONVERSATION = f"{_OWN}answers", f"{_OWN}conversation"
_LONGEST = 10_000  # characters of a header
_NO_QUESTION = Question("", "", "", [], "unknown")
_DATES = re.compile(r"\d+|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*", re.I)


class Log:
    """The file of a recording, to which only one process appends whole lines.

    ``conversations`` maps every name that a reward may use to its conversation, ``callers`` every
    id of a call, and ``replies`` every hash of a reply with its question, to None if two have it.
    ``histories`` are hashes of conversations up to a turn (`_hashes`). Raises InputError for
    another kind of file, or one that another process appends to, and leaves it as it is.
    """

    def __init__(self, path: Path) -> None:
        if str(path) == STDIN or (path.exists() and not path.is_file()):
            raise InputError.at(path, "is not a regular file; name a file with --output")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.conversations: dict[str, str] = {}
        self.callers: dict[str, str] = {}
        self.replies: dict[str, str | None] = {}
        self.histories: set[str] = set()
        self._half: int | None = None  # where half a line begins, which could not be removed
        with ExitStack() as failing:
            self._file = failing.enter_context(path.open("a+b", buffering=0))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another steep record writes it; name another --output"
                raise InputError.at(path, problem) from None
            try:
                place = Place(path, 0)
                for place, row in read_recordings([path]):  # noqa: B007
                    self._remember(row)
            except InputError as error:
                raise InputError(
                    f"{error}; the file is not a recording and was left as it is; name another one "
                    "with --output"
                ) from None
            lines, last = 0, b"\n"
            with path.open("rb") as file:
                for lines, last in enumerate(file, start=1):  # noqa: B007
                    pass
            if lines == place.line and not last.endswith(b"\n"):
                self._file.write(b"\n")
            elif not last.endswith(b"\n"):  # a kill has cut it off
                self._file.truncate(path.stat().st_size - len(last))
            failing.pop_all()

    def close(self) -> None:
        self._file.close()

    def append(self, row: RecordedTurn | RecordedReward) -> None:
        """Append a line, and only then remember it; raises `Busy` when it cannot be written."""
        line = memoryview((json_text(asdict(row), allow_nan=False) + "\n").encode("utf-8"))
        try:
            self._remove_half()
            state = os.fstat(self._file.fileno())
            if not state.st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was removed; start steep record again")
            self._half = state.st_size
            while line:
                line = line[self._file.write(line) :]
            self._half = None
        except OSError as error:
            with suppress(OSError):  # else the next line tries again
                self._remove_half()
            problem = f"{self._file.name}: cannot be written, so nothing was recorded"
            raise Busy(f"{problem}: {error.strerror}", 507, 30) from None
        self._remember(row)

    def _remove_half(self) -> None:
        if self._half is not None:
            self._file.truncate(self._half)
            self._half = None

    def _remember(self, row: RecordedTurn | RecordedReward) -> None:
        if isinstance(row, RecordedReward):
            return
        self.conversations |= dict.fromkeys((row.conversation, row.turn), row.conversation)
        self.callers |= dict.fromkeys(row.calls, row.conversation)
        reply, _, history = row.hashes.partition(" ")
        known = self.replies.setdefault(reply, row.conversation)
        self.replies[reply] = known if known == row.conversation else None
        self.histories.add(history)


@dataclass(eq=False)
class _Open:
    """The last turn of a conversation, which a request may continue."""

    turn: str
    messages: list[Message]  # numbered
    tools: list[dict[str, Any]]
    so_far: PartialTrajectory
    ended: bool  # whether the turn has its end


@dataclass(frozen=True)
class _Placed(Prepared):
    """A request and its place: it continues ``before``, or starts a trajectory for ``reason``."""

    sent: list[Message]  # uniform
    messages: list[Message]  # numbered
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
    of the user, which is a question or contains it; equal questions have the answers of all.
    """

    def __init__(
        self, *arguments: Any, log: Log, policy_id: str, questions: Sequence[Question] = ()
    ) -> None:
        super().__init__(*arguments)
        self._log = log
        self._policy_id = policy_id
        self._questions: dict[str, Question] = {}
        for one in questions:
            same = self._questions.get(text := _plain(one.question), one)
            answers = list(dict.fromkeys([*same.answers, *one.answers]))
            self._questions[text] = replace(same, answers=answers)
        self._open: OrderedDict[str, list[_Open]] = OrderedDict()  # by conversation

    def reward(self, body: Body) -> dict[str, Any]:
        """Record a reward; raises NotFound for a conversation that was not recorded."""
        given = _Reward.model_validate(body)
        if given.conversation not in self._log.conversations:
            raise NotFound(
                f"there is no conversation {given.conversation!r:.80}; use the id of any of its "
                f"completions, or its {CONVERSATION}"
            )
        self._log.append(RecordedReward(given.conversation, given.reward))
        return {"conversation": given.conversation, "reward": given.reward}

    def prepare(self, asked: TurnRequest, headers: Mapping[str, str]) -> Prepared:
        own = _own_headers(headers)
        template, parser = self.declared(asked.declared)
        sent = received(asked)
        messages = numbered(sent)
        conversation, before, reason = self._placed(
            own.get(CONVERSATION), sent, messages, asked.declared
        )
        frame = None
        if before is not None and reason is None:
            turn, inserted = before.messages[-1], messages[len(before.messages) :]
            frame, new = template.frame(turn, inserted), template.inserted_messages(turn, inserted)
            ids = [*before.so_far.prompt_ids, *before.so_far.token_ids, *frame.ids]
        else:
            new = shown(template, messages)
            ids = template.ids(new)
        return _Placed(
            parser, self.request(asked, ids), asked, sent, messages, new, before, frame, reason,
            conversation, self._question(messages, own),
        )  # fmt: skip

    def _placed(
        self,
        named: str | None,
        sent: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[str | None, _Open | None, str | None]:
        """The conversation of a request, None for a new one; the turn before; why it is not joined.

        ``named`` is the conversation that the client names.
        """
        log, history = self._log, sent[: _history(sent)]
        reply, _, whole = _hashes(history).partition(" ")
        owner = log.replies.get(reply) if whole in log.histories else ""
        owners = {owner} if owner != "" else {log.callers.get(name) for name in _calls(history)}
        owners = owners - {None} if named is None else {log.conversations.get(named, named)}
        conversation = next(iter(owners)) if len(owners) == 1 else None
        if not history:
            return conversation, None, None
        if conversation is not None:
            return conversation, *_joined(self._open.get(conversation, ()), messages, tools)
        every = (one for ends in self._open.values() for one in ends)
        first = _first_user(messages)
        alike = [one for one in every if _first_user(one.messages) == first]
        _, reason = _joined(alike, messages, tools)
        if owner == "" and not (owners or alike):
            return None, None, reason
        several = "calls of" if owners else "equal replies in" if owner is None else None
        reason = f"{several} several conversations" if several else reason or "other ids of calls"
        return None, None, f"ambiguous: {reason}"

    def _question(self, messages: Sequence[Message], own: Mapping[str, str]) -> Question | None:
        """The question of a conversation with its gold answers, if they are known."""
        if ANSWERS in own:
            answers = _answers(own[ANSWERS])
            return replace(asked_question(messages), dataset="recorded", answers=answers)
        message = _plain(_first_user(messages))
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
        conversation = placed.conversation or result.id
        reason = placed.reason
        if frame is not None and before in self._open.get(conversation, ()):
            assert before is not None
            so_far, after = before.so_far.branched(0, request.seed), before.turn
        else:
            reason = "continued twice" if frame is not None else reason
            so_far = PartialTrajectory(_NO_QUESTION, 0, request.seed, request.prompt_ids)
            before, frame, after = None, None, None
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
        [reply] = uniform([turn.message])
        sent = [*placed.sent, reply]
        messages = numbered(sent)
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
                constrained=request.constraint is not None,
                question=None if after else placed.question,
                hashes=_hashes(sent),
                calls=_calls([reply]),
            )
        )
        ends = self._open.setdefault(conversation, [])
        if before is not None:
            ends.remove(before)
        ended = result.finish == "eos"
        ends.append(_Open(result.id, messages, placed.asked.declared, so_far, ended))
        self._open.move_to_end(conversation)
        while sum(map(len, self._open.values())) > MOST_OPEN:
            self._open.popitem(last=False)


def recorder_routes(model: RecordedModel, name: str) -> APIRouter:
    """The protocol for chat completions, for any name of a model, and ``POST /reward``."""

    async def complete(body: Body, headers: Mapping[str, str], _: Watch | None) -> dict[str, Any]:
        return await model.complete(TurnRequest.of(body), headers)

    router = completion_routes([name], complete)

    @router.post("/reward")
    async def reward(request: Request) -> Response:
        async def given(body: Body) -> Response:
            return JSONResponse(await model.beside(model.reward, body))

        return await respond(request, given)

    return router


def _history(messages: Sequence[Message]) -> int:
    """The number of messages up to the assistant's last."""
    turns = [number for number, one in enumerate(messages, 1) if one["role"] == "assistant"]
    return turns[-1] if turns else 0


def _joined(
    known: Sequence[_Open], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[_Open | None, str | None]:
    """The turn before a request, and why the request does not continue it, None if it does."""
    if not known:
        return None, "unknown history"
    length = _history(messages)
    sent = [_without_reasoning(message) for message in messages]

    def likeness(one: _Open) -> tuple[bool, int]:
        same = common_length([_without_reasoning(message) for message in one.messages], sent)
        return same == len(one.messages) == length, same

    nearest = max(known, key=likeness)
    whole, at = likeness(nearest)
    if whole and sum(likeness(one)[0] for one in known) > 1:
        return nearest, "several turns fit"
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


def _hashes(messages: Sequence[Message]) -> str:
    """Hashes of the question with the last reply, and of the whole conversation up to the reply."""
    texts = [json.dumps(_without_reasoning(message), sort_keys=True) for message in messages]
    reply = [_first_user(messages), *texts[-1:]]
    parts = (json.dumps(each).encode() for each in (reply, texts))
    return " ".join(hashlib.blake2b(part, digest_size=16).hexdigest() for part in parts)


def _calls(messages: Sequence[Message]) -> list[str]:
    """The ids of the calls in messages."""
    return [
        call["id"] for each in messages for call in each.get("tool_calls", ()) if call.get("id")
    ]


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of this protocol; raises InputError for an unreadable one."""
    own: dict[str, str] = {}
    for name, value in headers.items():
        if not name.startswith(_OWN):
            continue
        if name not in (ANSWERS, CONVERSATION) or name in own:
            raise InputError(f"{name}: expected {ANSWERS} and {CONVERSATION}, each once")
        try:  # servers read headers as Latin-1
            own[name] = value.encode("latin-1").decode("utf-8").strip()
        except UnicodeError:
            raise InputError(
                f"{name}: not UTF-8 text; send UTF-8, or JSON with \\u escapes"
            ) from None
        if not 0 < len(own[name]) <= _LONGEST:
            raise InputError(f"{name}: {len(own[name]):,} characters; expected 1 to {_LONGEST:,}")
    return own


def _answers(given: str) -> list[str]:
    """The gold answers of a header: a JSON list of texts, or one text."""
    answers = parse_json(given, ANSWERS) if given[0] in '["{' or given == "null" else given
    listed = answers if isinstance(answers, list) else [answers]
    if not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        problem = f'expected texts such as ["Rome", "Roma"], got {one_line(given, 80)}'
        raise InputError(f"{ANSWERS}: {problem}")
    if not encodable(listed):
        raise InputError(f"{ANSWERS}: half of a surrogate pair; send UTF-8")
    return listed


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
