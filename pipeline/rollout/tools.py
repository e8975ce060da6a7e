"""Roll-outs as conversations with tool calls, through the policy's own chat template.

Input: sampled turns. Output: the queries of their calls, and the frames with the results, whose ids
are spliced between the sampled ids. A turn with several calls is several retrievals. Calls of a
user's tools are answered by their functions. Calls beyond the budget of steps are answered with a
notice, and end the trajectory; so does a malformed turn, unless its error is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.config.policy import Prompt
from pipeline.core.formats import FormatName
from pipeline.core.records import Step
from pipeline.knowledge.retrieval.base import Query
from pipeline.llm.engine import GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.messages import Call, Message, calls_of, recorded, tool_call
from pipeline.rollout.conversations.steps import (
    OWN_TOOLS,
    OwnTool,
    parse,
    search_arguments,
    tool_format,
    write,
)
from pipeline.rollout.conversations.template_check import rewriting_note
from pipeline.rollout.conversations.turn_parser import ParsedTurn, TurnParser
from pipeline.rollout.formats import (
    Format,
    Items,
    Next,
    OpenFormat,
    Steps,
    Turns,
    Written,
)
from pipeline.rollout.grammars.base import Finish, ParsedOutput
from pipeline.rollout.partial import PartialTrajectory

NOTICE = "No further search is possible."
_CUT_OFF = "no answer: the last turn is longer than its limit"


class Tools(Format):
    """Messages with calls of the method's search, and of a user's tools."""

    name: ClassVar[FormatName] = "tools"

    @property
    def identity(self) -> str:
        return f" {self.name} {self.malformed_calls}"

    @property
    def tools(self) -> str | None:
        return tool_format(self.grammar.name).declared

    def open(self, tokenizer: Tokenizer, max_steps: int) -> OpenFormat:
        limited, answered = self.limited(tokenizer, max_steps), self.malformed_calls == "answer"
        return ToolConversations(tokenizer, limited, self.thinking, answered)

    def example(self, question: str, steps: Steps, answer: str, turns: Turns) -> Written:
        form = tool_format(self.grammar.name)
        written = write(form, steps, answer, self.grammar.item_lines)
        parsed = parse(form, [{"role": "user", "content": question}, *written])
        fields = {"messages": recorded(written), "tools": self.tools}
        return {"completion": "", "spans": [], **fields}, parsed

    def template_note(self, open_tokenizer: Callable[[], Tokenizer]) -> str:
        tools = tool_format(self.grammar.name).tools
        return rewriting_note(ChatTemplate(open_tokenizer(), tools, thinking=self.thinking))


@dataclass(eq=False)
class ToolConversations(OpenFormat):
    """The conversations of one method under one tokenizer.

    ``grammar`` writes the retrieved items. With ``answer_malformed`` a malformed call is answered
    by its error, and counts as a step. Raises InputError when the chat template refuses tools, or
    its calls cannot be parsed; a template that rewrites earlier turns is logged.
    """

    thinking: bool | None = None
    answer_malformed: bool = False
    name: ClassVar[FormatName] = "tools"

    def __post_init__(self) -> None:
        self.format = tool_format(self.grammar.name)
        self.template = ChatTemplate(self.tokenizer, self.format.tools, thinking=self.thinking)
        if note := rewriting_note(self.template):
            logging.getLogger(__name__).warning(note)
        self._parser = TurnParser(self.template)
        if self.answer_malformed:  # some templates refuse a result without a call
            self.template.frame({"role": "assistant", "content": "x"}, [_result("x", None)])

    def prompt(self, prompt: Prompt, question: str) -> tuple[list[Message], list[int]]:
        messages = self.template.prompt_messages(
            [{"role": one.role, "content": one.content} for one in prompt.messages(question)]
        )
        return messages, self.template.ids(messages)

    def shown(self, trajectory: PartialTrajectory, items: Items) -> str:
        return self.grammar.item_lines(items)

    def next_action(self, trajectory: PartialTrajectory, end: GenerationResult, most: int) -> Next:
        """The queries of the turn; none where all calls are malformed, or call a user's tools."""
        if end.finish == "length":
            trajectory.messages.append({"role": "assistant", "content": end.text})
            trajectory.problem = _CUT_OFF
            return Finish("max_tokens")
        turn = self._parser.parse(end.token_ids)
        message = _message(turn, len(trajectory.messages))
        trajectory.messages.append(message)
        problem = turn.problem or self.format.problem(turn.calls)
        left = most - len(trajectory.contexts) - trajectory.other_calls
        if problem is not None:
            if not self.answer_malformed or not (turn.bad_call or turn.calls) or left < 1:
                trajectory.problem = problem
                return Finish("malformed")
            trajectory.malformed_calls += 1
            trajectory.other_calls += 1
            trajectory.answers = [f"Error: {problem}"] * max(1, len(calls_of(message)))
            return []
        if not turn.calls:
            return Finish("answer")
        if left < 1:
            return Finish("max_steps")
        kept = turn.calls[:left]
        own = [OWN_TOOLS.get(call.name) for call in kept]
        trajectory.answers = [
            None if tool is None else _output(tool, call)
            for tool, call in zip(own, kept, strict=True)
        ] + [NOTICE] * len(turn.calls[left:])
        trajectory.other_calls += len(own) - own.count(None)
        trajectory.refused = len(turn.calls) > left
        searches = (
            search_arguments(call) for call, tool in zip(kept, own, strict=True) if tool is None
        )
        return [Query(query.strip(), tuple(map(str.strip, names))) for query, names in searches]

    def append(self, trajectory: PartialTrajectory, contexts: Sequence[Items]) -> bool:
        """Append the frame with the answer to each call, ``contexts`` to the searches."""
        write_frame = self.template.frame
        if not trajectory.token_ids:
            question = trajectory.messages[-1]["content"]
            step = Step(entities=[question], subquery=question, search=question)
            trajectory.messages += write(self.format, [step], "", self.grammar.item_lines)[:1]
            trajectory.answers, write_frame = [None], self.template.written_turn
        turn = trajectory.messages[-1]
        items, answers = iter(contexts), trajectory.answers
        ids = [call.id for call in calls_of(turn)] or [None]
        results = [
            _result(self.grammar.item_lines(next(items)).strip() if text is None else text, name)
            for text, name in zip(answers, ids, strict=True)
        ]
        frame = write_frame(turn, results)
        trajectory.messages += self.template.inserted_messages(turn, results)
        shown = [self.grammar.sanitize_items(items) for items in contexts]
        searched = [n for n, text in zip(frame.lengths, answers, strict=True) if text is None]
        trajectory.append_frame(frame, shown, searched, self.template.tokenizer)
        return not trajectory.refused

    def parse(self, trajectory: PartialTrajectory, most: int) -> ParsedOutput:
        cut_off = trajectory.problem == _CUT_OFF
        complete = trajectory.messages[:-1] if cut_off else trajectory.messages
        parsed = parse(self.format, complete, most, answered=self.answer_malformed)
        if trajectory.problem is not None:
            parsed.answer, parsed.format_ok = None, False
            parsed.format_error = trajectory.problem
        return parsed


def _output(tool: OwnTool, call: Call) -> str:
    """The result of a user's function; an error is a result too, so that the policy can react."""
    try:
        text = str(tool.function(**call.arguments))
        text.encode()  # no tokenizer and no record takes half of a surrogate pair
        return text
    except Exception as error:  # noqa: BLE001 - the function is the user's
        return f"Error: {error}"


def _result(text: str, call_id: str | None) -> Message:
    named = {} if call_id is None else {"tool_call_id": call_id}
    return {"role": "tool", "content": text, **named}


def _message(turn: ParsedTurn, number: int) -> Message:
    """The assistant's message of a parsed turn; ``number`` makes the ids of its calls unique."""
    message: Message = {"role": "assistant", "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if calls := turn.calls or turn.invalid:
        message["tool_calls"] = [
            # Some templates want nine letters or digits.
            tool_call(call.name, call.arguments, f"call{number:03d}{place:02d}")
            for place, call in enumerate(calls)
        ]
    return message
