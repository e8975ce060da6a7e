"""Import result files of other systems, such as Search-R1 and Graph-R1, as trajectories.

Input: rows in any form of `pipeline.core.row_files` with a question and gold answers, which are
read as in question files, and the whole model output under any of the common field names, or
messages with tool calls as agents log them (`conversations.forms`). An output of R1-Searcher has
its own grammar, whichever is asked for. Output: trajectories that can be parsed, scored and paired
like sampled ones, but without token ids. A row that cannot be imported is reported with its reason.
So is a row whose policy text and retrieved text cannot be separated with certainty
(`imported_text`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from pipeline.core.errors import InputError
from pipeline.core.methods import DEFAULT_IMPORT
from pipeline.core.records import GrammarName, HopType, Span, Trajectory
from pipeline.core.row_files import iterate_rows
from pipeline.core.spans import SpannedText, extend
from pipeline.knowledge.corpus.questions.answers import GOLD, gold_answers, literal
from pipeline.knowledge.corpus.questions.native import HOP
from pipeline.knowledge.corpus.questions.own import QUESTION, evidence_texts, question_text
from pipeline.knowledge.corpus.questions.republished import prompted_question, with_answers
from pipeline.knowledge.corpus.raw_records import RawRecord
from pipeline.rollout.conversations.messages import (
    Message,
    by_turns,
    name_searches,
    read_messages,
    split_turns,
    without_closing,
)
from pipeline.rollout.conversations.steps import parse, tool_format
from pipeline.rollout.grammars import ParsedOutput, grammar
from pipeline.rollout.grammars.tagged import TaggedGrammar
from pipeline.rollout.imported_text import R1_SEARCHER, UncertainWriter, separate

_MESSAGES = ("messages", "conversations", "conversation", "traj", "trajectory", "chat_history")
_OUTPUT = ("full_output", "output", "response", "generation", "sequences_str", "completion")
_R1_OUTPUT = "gen_text_store"  # R1-Searcher's evaluation
_ALL = (*_MESSAGES, *_OUTPUT)


@dataclass(frozen=True)
class SkippedLine:
    """A line that could not be imported."""

    path: Path | str
    line: int
    reason: str

    def __str__(self) -> str:
        return str(InputError.at(self.path, self.reason, self.line))


def iterate_outputs(
    paths: Sequence[Path | str],
    *,
    grammar_name: GrammarName = DEFAULT_IMPORT,
    hop: HopType | None = None,
    search_tools: Sequence[str] = (),
    whole_answer: bool = False,
    notes: Counter[str] | None = None,
) -> Iterator[Trajectory | SkippedLine]:
    """The trajectory of every line of all files, or the reason why it was skipped.

    The policy of a trajectory is the stem of its file. The same question in several files keeps one
    ``question_id``, so that trajectories of several policies can be paired. ``hop`` is used where
    neither the row nor its data set determines it, by default "unknown". ``search_tools`` are other
    names of the method's search tool, as ``name`` or ``name=argument`` of the query. With
    ``whole_answer`` the whole last message is the answer if it has no ``Answer:``. ``notes`` counts
    what was left out of rows. Only one row at a time is in memory, with the number of samples of
    every question. Raises InputError for a file that is missing or broken, or has no row that can
    be imported.
    """
    rows = _Rows(
        grammar_name, hop, search_tools, whole_answer, Counter() if notes is None else notes
    )
    samples: Counter[str] = Counter()
    for path in paths:
        imported, first_skipped = 0, None
        policy = "stdin" if str(path) == "-" else Path(path).stem
        for row in iterate_rows(path):
            line = row.line or row.number
            try:
                if isinstance(row.value, InputError):
                    raise row.value
                record = RawRecord(row.value, line).plain()
                trajectory = rows.trajectory(with_answers(record), policy)
            except (InputError, UncertainWriter, RecursionError) as problem:
                skipped = SkippedLine(path, line, str(problem))
                first_skipped = first_skipped or skipped
                yield skipped
                continue
            imported += 1
            trajectory.sample = samples[trajectory.question_id]
            samples[trajectory.question_id] += 1
            trajectory.trajectory_id = f"{trajectory.question_id}/{policy}/{trajectory.sample}"
            yield trajectory
        if first_skipped is not None and not imported:
            raise InputError(
                f"{first_skipped}; no line of this file can be imported as {grammar_name}"
            )


@dataclass(frozen=True)
class _Rows:
    """Reads rows; the fields are the options of `iterate_outputs`."""

    grammar_name: GrammarName
    hop: HopType | None
    search_tools: Sequence[str]
    whole_answer: bool
    notes: Counter[str]

    def trajectory(self, record: RawRecord, policy: str) -> Trajectory:
        messages = _logged(record)
        made = self._tagged(record) if messages is None else self._conversation(messages)
        made.question = question_text(record) or made.question
        made.answers = gold_answers(record)
        if not made.question:
            raise InputError(f"no question; looked for {', '.join(QUESTION)}")
        if not made.answers:
            raise InputError(f"no gold answers; looked for {', '.join(GOLD)}")
        dataset = (record.identifier("dataset") or record.identifier("data_source") or "").lower()
        identity = f"{dataset}\n{made.question}".encode(errors="surrogatepass")
        name = f"{dataset or 'question'}-{hashlib.sha256(identity).hexdigest()[:12]}"
        stated: HopType | None = record.find("hop")
        known = HOP.get(dataset, self.hop or "unknown")
        made.hop = stated if stated is not None and stated in get_args(HopType) else known
        made.question_id = record.identifier("question_id") or name
        made.dataset, made.policy, made.evidence = dataset, policy, evidence_texts(record)
        return made

    def _tagged(self, record: RawRecord) -> Trajectory:
        if not (given := _first(record.value, (_R1_OUTPUT, *_OUTPUT))):
            raise InputError(f"no model output; looked for {', '.join(_OUTPUT)}")
        of_r1_searcher = _R1_OUTPUT in record.value or grammar(R1_SEARCHER).chat_tags[0] in given
        name = R1_SEARCHER if of_r1_searcher else self.grammar_name
        output, observed = "", bytearray()  # for each character 1 if it was retrieved
        for text, is_block in separate(given, name, record.find("searches")):
            output, observed = output + text, observed + bytes([is_block]) * len(text)
        parser = grammar(name)
        if isinstance(parser, TaggedGrammar):
            tags = ("<think>", parser.search_tags[0], "<answer>")
            if not any(tag in output for tag in tags):
                problem = f"the output has none of {', '.join(tags)}, so its grammar is not"
                raise InputError(f"{problem} {name}")
        # The grammar adds what its rollout writes around documents. Alone it does not suffice,
        # because it finds no documents after a format error.
        for start, end, writer in parser.spans(output):
            if writer != "model":
                observed[start:end] = b"\1" * (end - start)
        spans = list[Span]()
        for flag, run in groupby(observed):
            spans = extend(spans, len(list(run)), "observation" if flag else "model")
        asked = "" if question_text(record) else prompted_question(record)
        made = self._made(parser.parse(output, spans), output, spans, asked or "")
        return replace(made, grammar=name)

    def _conversation(self, given: list[Message]) -> Trajectory:
        """A log of messages; the last message of the user before the first turn asks."""
        form = tool_format(self.grammar_name)
        name_searches(given, form.name, self.search_tools)
        messages = without_closing(given)
        parsed = parse(form, messages, whole=self.whole_answer)
        prompt, turns = split_turns(messages)
        written = SpannedText()
        for piece in by_turns([message for turn in turns for message in turn]):
            written.add(*piece)
        asked = [message["content"] for message in prompt if message["role"] == "user"]
        self.notes["user messages after an answer, dropped"] += len(given) - len(messages)
        question, text = asked[-1] if asked else "", json.dumps(messages, ensure_ascii=False)
        return self._made(parsed, written.text, written.spans, question, text)

    def _made(
        self, parsed: ParsedOutput, output: str, spans: list[Span], asked: str, messages: str = ""
    ) -> Trajectory:
        """A trajectory with ``asked`` as its question, whose other facts the row says."""
        made = Trajectory("", "", "", asked, "unknown", [], [], self.grammar_name, output)
        made.format, made.messages = "tools" if messages else "tags", messages
        made.spans, made.stop = spans, "answer"
        if parsed.answer is None:
            made.stop = "max_steps" if spans and spans[-1][2] == "observation" else "malformed"
        return replace(made, **vars(parsed))


def _logged(record: RawRecord) -> list[Message] | None:
    """The messages of a row, in any form; None for a row with an output of text.

    Messages without an assistant's are the prompt if an output, or another log, stands beside
    them. Raises InputError for an output beside messages that end before it.
    """
    row, prompt = record.value, list[Any]()
    output = _first(row, (_R1_OUTPUT, *_OUTPUT))
    for name in _ALL:
        value = row.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(ValueError):
                value = literal(value)
        if not value or not isinstance(value, list):
            continue
        roles = (each.get("role") if isinstance(each, dict) else None for each in value)
        if output and all(role in ("system", "user") for role in roles):
            continue
        asked = prompt or row.get("input") or row.get("prompt") or []
        opening = [] if name in _MESSAGES else asked
        if not isinstance(opening, list):
            opening = [{"role": "user", "content": opening}]
        system = row.get("system") or row.get("instructions")
        log = [*([{"role": "system", "content": system}] if system else []), *opening, *value]
        read = read_messages(log)
        answered = any(message["role"] == "assistant" for message in read)
        others = [each for each in (*_ALL[_ALL.index(name) + 1 :], _R1_OUTPUT) if row.get(each)]
        if not others or (answered and read[-1]["role"] == "assistant"):
            return read
        if answered:
            raise InputError(f"{name} ends before {others[-1]}; write it as the last message")
        prompt = value
    lists = [name for name, value in row.items() if isinstance(value, list | dict) and value]
    if not output and (named := [name for name in lists if name not in (*GOLD, "evidence")]):
        raise InputError(
            f"no model output, and no messages in {', '.join(_MESSAGES)}; the form of "
            f"{', '.join(named)} is not read"
        )
    return None


def _first(row: dict[str, Any], names: Sequence[str]) -> str:
    texts = (row.get(name) for name in names)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")
