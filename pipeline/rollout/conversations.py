"""Roll-outs as conversations with tool calls, through the policy's own chat template.

Input: sampled turns. Output: the queries of their calls, and the frames with the results, whose ids
are spliced between the sampled ids. A turn with several calls is several retrievals. Calls beyond
the budget of steps are answered with a notice, and end the trajectory; so does a malformed turn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pipeline.conversations.chat_template import ChatTemplate
from pipeline.conversations.messages import Message
from pipeline.conversations.steps import FORMATS, parse
from pipeline.conversations.template_check import rewriting_note
from pipeline.conversations.turn_parser import ParsedTurn, TurnParser
from pipeline.core.records import ContextItem
from pipeline.grammars.base import Finish, Grammar, ParsedOutput
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.llm.engine import GenerationResult
from pipeline.retrieval.base import Query
from pipeline.rollout.partial import PartialTrajectory

NOTICE = "No further search is possible."


class ToolConversations:
    """The conversations of one method under one tokenizer.

    ``grammar`` writes the retrieved items. Raises InputError when the chat template refuses tools,
    or its calls cannot be parsed; a template that rewrites earlier turns is logged.
    """

    def __init__(
        self, tokenizer: Tokenizer, grammar: Grammar, *, thinking: bool | None = None
    ) -> None:
        self.grammar = grammar
        self.tool = FORMATS[grammar.name].tool
        self.template = ChatTemplate(tokenizer, [self.tool], thinking=thinking)
        if note := rewriting_note(self.template):
            logging.getLogger(__name__).warning(note)
        self._parser = TurnParser(self.template)

    def prompt(self, system: str, question: str) -> tuple[list[Message], list[int]]:
        """The messages before the first turn, and their token ids."""
        messages = self.template.prompt_messages(
            [{"role": "system", "content": system}, {"role": "user", "content": question}]
        )
        return messages, self.template.ids(messages)

    def next_action(
        self, trajectory: PartialTrajectory, result: GenerationResult, max_steps: int
    ) -> Finish | list[Query]:
        """The queries of the turn in ``result``, or why the trajectory ends."""
        if result.finish == "length":
            return Finish("max_tokens")
        turn = self._parser.parse(result.token_ids)
        arguments = [call.arguments for call in turn.calls]
        queries = [
            Query(each["query"].strip(), tuple(map(str.strip, each.get("entities", ()))))
            for each in arguments
        ]
        trajectory.problem = turn.problem
        if not all(query.subquery and all(query.entities) for query in queries):
            trajectory.problem = f"an empty argument of {turn.calls[0].name}"
        trajectory.messages.append(_message(turn, len(trajectory.messages)))
        if trajectory.problem is not None:
            return Finish("malformed")
        if not queries:
            return Finish("answer")
        return queries[: max_steps - len(trajectory.contexts)] or Finish("max_steps")

    def append_results(
        self, trajectory: PartialTrajectory, contexts: Sequence[Sequence[ContextItem]]
    ) -> bool:
        """Append the frame with the items of each call; whether the trajectory goes on."""
        turn = trajectory.messages[-1]
        texts = [self.grammar.item_lines(items).strip() for items in contexts]
        refused = len(turn["tool_calls"]) - len(texts)
        results: list[Message] = [
            {"role": "tool", "content": text, "tool_call_id": call["id"]}
            for call, text in zip(turn["tool_calls"], [*texts, *[NOTICE] * refused], strict=True)
        ]
        frame = self.template.frame(turn, results)
        trajectory.messages += self.template.inserted_messages(turn, results)
        shown = [self.grammar.sanitize_items(items) for items in contexts]
        trajectory.append_frame(frame, shown, self.template.tokenizer)
        return refused == 0

    def parse(self, trajectory: PartialTrajectory, max_steps: int) -> ParsedOutput:
        """Steps, answer and verdict of a finished trajectory."""
        parsed = parse(self.grammar.name, trajectory.messages, max_steps)
        if trajectory.problem is not None:
            parsed.answer, parsed.format_ok = None, False
            parsed.format_error = trajectory.problem
        return parsed


def _message(turn: ParsedTurn, number: int) -> Message:
    """The assistant's message of a parsed turn; ``number`` makes the ids of its calls unique."""
    message: Message = {"role": "assistant", "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call{number:03d}{place:02d}",  # some templates want nine letters or digits
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(turn.calls)
        ]
    return message
