"""Valid calls of every command that takes a file, as material for faults."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.records import ContextItem, Step
from pipeline.rollout.grammars import grammar
from tests.conversations.shipped_templates import SEARCH, byte_tokenizer, template_files

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Command:
    """``arguments`` with ``{in}`` for the file and ``{dir}`` for the directory of ``files``."""

    arguments: tuple[str, ...]
    records: tuple[Json, ...]
    required: tuple[str, ...] = ()
    span_fields: tuple[str, ...] = ()
    write: Callable[[], dict[str, bytes]] = dict  # tokenizers are built at first use
    unique: bool = False
    output: bool = True

    @property
    def files(self) -> dict[str, bytes]:
        return self.write()

    @property
    def name(self) -> str:
        return " ".join(self.arguments)

    def call(self, directory: Path, source: Path) -> list[str]:
        """The words of the command on ``source``, and ``files`` written to ``directory``."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        return [word.format_map({"in": source, "dir": directory}) for word in self.arguments]


_STEPS = [
    Step(["Byron"], "Who was Byron?", [ContextItem("chunk", "c", "Byron", "A poet.", 0.5)], "A poet."),
    Step(["Ada"], "Who was Ada?", [ContextItem("triplet", "t", "", "Ada child of Byron", 0.2)], "His."),
]  # fmt: skip
_TEARAG, _SPANS = grammar("tearag").render(_STEPS, "poet")
_HIPRAG_STEPS = [
    Step(reasoning="r", search="q", context=[ContextItem("chunk", "c", "T", "x", 0.0)], conclusion="c"),
    Step(reasoning="r", conclusion="c"),
]  # fmt: skip
_HIPRAG, _ = grammar("hiprag").render(_HIPRAG_STEPS, "poet")
_FACT = ContextItem("hyperedge", "h", "", "Up is by Ann.", 1.0)
_PROGRAPH_STEPS = [Step(think="t", query="q", context=[_FACT]), Step(think="t")]
_PROGRAPH, _ = grammar("prograph").render(_PROGRAPH_STEPS, "Ann")
_SEARCH_R1 = (
    '<think>t</think>\n<search>q</search>\n\n<information>Doc 1(Title: "T") x</information>\n\n'
    "<think>t</think>\n<answer>poet</answer>"
)
_TRAJECTORY: Json = {
    "trajectory_id": "a", "question_id": "q", "question": "Who was Byron?", "dataset": "d",
    "hop": "multi", "answers": ["poet", "a poet"], "evidence": ["Byron: A poet."],
    "grammar": "tearag", "output": _TEARAG, "spans": [list(span) for span in _SPANS],
    "stop": "answer",
}  # fmt: skip
_PARSED = {
    **_TRAJECTORY,
    "steps": [dataclasses.asdict(step) for step in _STEPS],
    "answer": "poet",
    "format_ok": True,
}
JUDGED: Json = {
    "trajectory_id": "a", "question_id": "q", "hop": "multi", "answers": ["poet"], "answer": "poet", "format_ok": True,
    "grammar": "hiprag", "output": _HIPRAG, "stop": "answer",
    "steps": [
        {"reasoning": "r", "search": "q", "context": [{"text": "d"}], "conclusion": "c", "verdict": "yes"},
        {"reasoning": "r", "search": None, "context": None, "conclusion": "c", "verdict": "no"},
    ],
}  # fmt: skip
_GRAPH: Json = {
    "question": "Who made Up?", "answers": ["Ann"], "answer": "Ann", "format_ok": True,
    "entities": ["Up", "Ann"], "values": [0.25, 0.75, 1.0], "grammar": "prograph",
    "steps": [
        {"think": "t", "query": "q", "context": [{"text": "Up is by Ann", "entities": ["Up", "Ann"], "score": 1.0}]},
        {"think": "Ann.", "query": None, "context": []},
    ],
}  # fmt: skip


def _scored(name: str, question: str, outcome: float, **more: Any) -> Json:
    rewards = {"format": 1.0, "outcome": outcome, "process": 0.9, "total": 1.9 + outcome}
    return {
        "trajectory_id": name, "question_id": question, "hop": "multi", "dataset": "d", "sample": 0,
        "output": name, "stop": "answer", "rewards": rewards, **more,
    }  # fmt: skip


def _judged(name: str, total: float, n: int = 2) -> Json:
    rewards = {"format": 1.0, "answer": 1.0, "total": total, "n": n, "n_corr": 1, "steps": []}
    return _scored(name, "q", 0) | {"rewards": rewards, "sample": None}


_VERDICT = {"id": "a", "step": 0, "kind": "over", "verdict": "yes", "model": "m", "key": "k"}
_VERDICTS = (_VERDICT, _VERDICT | {"step": 1, "kind": "under", "verdict": "no"})
_QUESTION = {
    "question_id": "q", "dataset": "d", "question": "Who was Byron?", "answers": ["poet"], "hop": "multi",
    "decomposition": [{"question": "q", "answer": "a", "support_title": "T", "support_text": None}],
}  # fmt: skip
_CHUNKS = [
    {"id": "c", "title": "Byron", "text": "A poet.", "score": 0.3},
    {"id": "d", "title": "Ada", "text": "His daughter.", "score": -2.0},
]
_TRIPLETS = [
    {"id": "t", "head": "Ada", "relation": "child of", "tail": "Byron", "chunk_id": "d", "score": 1.0}
]  # fmt: skip
_KAG = {
    "subquery": "Who was Byron?", "entities": ["Byron"], "chunks": _CHUNKS, "triplets": _TRIPLETS,
    "tau": 0.2, "alpha": 0.5, "k_f": 5,
}  # fmt: skip
HYPER: Json = {
    "query_entities": ["A"], "entities": {"A": [2.0, 0.0], "B": [0.6, 0.8], "C": [0.0, 1.0]},
    "hyperedges": [
        {"id": "e1", "entities": ["A", "B"]}, {"id": "e2", "entities": ["A", "C"]}, {"id": "e3", "entities": ["B", "C"]},
    ],
}  # fmt: skip
_IMPORT = {
    "dataset": "NQ", "question": "who?", "golden": ["poet"], "full_output": _SEARCH_R1, "searches": 1,
}  # fmt: skip


@cache
def tokenizer_files() -> dict[str, bytes]:
    """A tokenizer of four words, as a model's directory holds it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"ask": 0, "seen": 1, "sum": 2, "end": 3}
    codec = Tokenizer(models.WordLevel(words, unk_token="end"))
    codec.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as directory:
        PreTrainedTokenizerFast(tokenizer_object=codec, eos_token="end").save_pretrained(directory)
        return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


IDS = {
    "output": "askseensum", "token_ids": [0, 1, 2, 3],
    "spans": [[0, 3, "model"], [3, 7, "observation"], [7, 10, "model"]],
    "token_spans": [[0, 1, "model"], [1, 2, "observation"], [2, 4, "model"]],
}  # fmt: skip
_PAIR = {
    "question_id": "q", "prompt": [{"role": "user", "content": "Who?"}],
    "chosen": [{"role": "assistant", "content": "ask seen sum"}],
    "rejected": [{"role": "assistant", "content": "end"}],
    "chosen_id": "a", "rejected_id": "b", "kind": "easy", "chosen_rewards": {"total": 2.5},
    "rejected_rewards": {"total": 1.0}, "policy": "p", "round": 1, "prompt_ids": [3],
    "chosen_ids": [0, 1, 2], "rejected_ids": [3],
    "chosen_spans": [[0, 1, "model"], [1, 2, "observation"], [2, 3, "model"]],
    "rejected_spans": [[0, 1, "model"]],
}  # fmt: skip


@cache
def conversation_files() -> dict[str, bytes]:
    """A byte-level tokenizer with the chat template and the control tokens of Qwen2.5."""
    [template] = [file for file in template_files() if file.stem == "qwen2_5"]
    tokenizer = byte_tokenizer(template.read_text(encoding="utf-8"))
    tokenizer.eos_token = "<|im_end|>"
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


_CALL = {
    "id": "c1", "type": "function",
    "function": {"name": "search", "arguments": '{"query": "Byron?", "entities": ["Byron"]}'},
}  # fmt: skip
CONVERSATION = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Search."}]},
        {"role": "user", "content": "Who was Byron?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "A poet <|im_end|>"},
        {"role": "assistant", "content": "So.\nAnswer: a poet"},
    ],
    "tools": [SEARCH],
}  # fmt: skip


def _lines(*records: Json) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


OUT = ("-o", "{dir}/out.jsonl")
COMMANDS = (
    Command(
        ("parse", "{in}", "--grammar", "tearag", *OUT),
        (_TRAJECTORY, {"output": "no"}),
        required=("output",),
        span_fields=("spans",),
    ),
    Command(
        ("metrics", "{in}", *OUT),
        ({"answer": "in Paris", "answers": ["Paris"]}, {"answer": None, "answers": ["x"]}),
        ("answers",),
    ),
    Command(
        ("mask", "{in}", "--tokenizer", "{dir}", *OUT),
        (IDS, {"output": "ask"}),
        span_fields=("spans", "token_spans"),
        write=tokenizer_files,
    ),
    Command(
        ("mask", "{in}", "--tokenizer", "{dir}", *OUT),
        (CONVERSATION, {"messages": CONVERSATION["messages"][1:2], "tools": json.dumps([SEARCH])}),
        write=conversation_files,
    ),
    Command(
        ("parse", "{in}", "--format", "tools", "--grammar", "tearag", *OUT),
        (CONVERSATION, {"messages": CONVERSATION["messages"]}),
        ("messages",),
    ),
    Command(
        ("import", "{in}", "--grammar", "search-r1", *OUT),
        (_IMPORT, _IMPORT | {"question": "what?"}),
    ),
    Command(
        ("score", "{in}", *OUT),
        (_TRAJECTORY, _PARSED, _PARSED | {"stop": "retrieval_error"}),
        ("hop", "answers", "evidence"),
        span_fields=("spans",),
    ),
    Command(
        ("score", "{in}", "--reward", "hiprag"),
        (JUDGED, JUDGED),
        ("answers",),
    ),
    Command(
        ("score", "{in}", "--reward", "prograph", *OUT),
        (_GRAPH, {"answers": ["Ann"], "output": _PROGRAPH, "entities": ["Up"], "question": "?"}),
        ("answers",),
    ),
    Command(
        ("pair", "{in}", "--funnel", "{dir}/funnel.jsonl", *OUT),
        (_scored("a", "q", 1.0), _scored("b", "p", 0.1), _scored("c", "q", 0.0), _scored("d", "p", 1.0),
         _scored("e", "q", 0.5, stop="retrieval_error", rewards=None)),
        ("trajectory_id", "question_id", "hop"),
        unique=True,
    ),
    Command(
        ("pair", "{in}"),
        (_judged("a", 1.4), _judged("b", 1.2), _judged("c", 0.2, 0)),
        ("trajectory_id", "question_id", "hop", "rewards"),
        unique=True,
    ),
    Command(
        ("kag", "{in}", *OUT),
        (_KAG, {key: _KAG[key] for key in ("subquery", "entities", "chunks", "triplets")}),
        ("subquery", "entities", "chunks", "triplets"),
    ),
    Command(
        ("hyper", "{in}"),
        (HYPER | {"k": 2}, HYPER | {"k": 1}),
        ("query_entities", "entities", "hyperedges"),
    ),
    Command(
        ("failures", "{in}", *OUT),
        (_TRAJECTORY, _PARSED | {"answer": "Ada"}),
        ("question", "hop", "answers"),
    ),
    Command(
        ("failures", "{dir}/t.jsonl", "--questions", "{in}"),
        (_QUESTION,),
        ("question_id", "dataset", "question", "answers", "hop"),
        write=lambda: {"t.jsonl": _lines(_PARSED | {"answer": "Ada"})},
    ),
    Command(
        ("calibrate", "{in}", "--truth", "{dir}/truth.jsonl"),
        _VERDICTS,
        tuple(_VERDICT),
        write=lambda: {"truth.jsonl": _lines(*_VERDICTS)},
        unique=True,
        output=False,
    ),
    Command(
        ("view", "{in}"),
        (_TRAJECTORY | {"steps": []},),
        ("trajectory_id", "question_id", "output"),
        span_fields=("spans",),
        output=False,
    ),
    Command(
        ("view", "{in}", "--tokenizer", "{dir}"),
        (_PAIR,),
        tuple(_PAIR),
        span_fields=("chosen_spans", "rejected_spans"),
        write=tokenizer_files,
        output=False,
    ),
)  # fmt: skip
