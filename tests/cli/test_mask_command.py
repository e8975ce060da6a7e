"""``steep mask``: its exit status, and ids that the tokenizer does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.malformed_inputs import accepted, refused, steep
from tests.cli.valid_records import CONVERSATION, IDS, conversation_files, tokenizer_files
from tests.conversations.shipped_templates import SEARCH, template_files


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return written(tmp_path, tokenizer_files())


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    return written(tmp_path, conversation_files())


def call(directory: Path, record: dict[str, Any], *options: str) -> tuple[str, ...]:
    """The words of the command that masks a record with the tokenizer of ``directory``."""
    file = directory / "in.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return ("mask", str(file), "--tokenizer", str(directory), *options)


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({}, None),
        ({"token_ids": [0, 2, 2, 3]}, "ids decode to 'umsum' at offset 4"),
        ({"token_ids": [0, 1, 0, 3]}, "ids decode to 'ask' at offset 7"),
        (
            {"token_spans": [[0, 2, "model"], [2, 4, "observation"]]},
            "ids decode to ' seensum' at offset 3",
        ),
        (
            {"spans": [[0, 3, "model"], [3, 3, "model"], [3, 7, "observation"], [7, 10, "model"]]},
            None,
        ),
    ],
)
def test_a_mismatch_in_masked_or_trained_text_is_exit_status_1(
    directory: Path, change: dict[str, Any], mismatch: str | None
) -> None:
    """Before, ids of trained text that spell another text gave exit status 0."""
    status, printed, complaint = steep([*call(directory, IDS | change)])
    found = json.loads(printed)["mismatch"]
    if mismatch is None:
        assert (status, complaint, found) == (0, "", None)
    else:
        assert (status, complaint) == (
            1,
            "text and tokens differ in 1 of 1 records; see mismatch\n",
        )
        assert mismatch in found


@pytest.mark.parametrize("missing", [(), ("token_ids", "token_spans")])
def test_trained_and_masked_text_follow_the_spans_also_without_ids(
    directory: Path, missing: tuple[str, ...]
) -> None:
    record = {name: value for name, value in IDS.items() if name not in missing}
    found = json.loads(accepted(*call(directory, record)))
    end = "" if missing else " end"
    assert (found["trained"], found["masked"]) == (["ask", f"sum{end}"], ["seen"])


@pytest.mark.parametrize("token_id", [-1, 4])
def test_ids_outside_the_vocabulary_are_refused(directory: Path, token_id: int) -> None:
    complaint = refused(*call(directory, IDS | {"token_ids": [0, 1, token_id, 3]}))
    assert complaint.endswith(
        f"in.jsonl:1: token_ids.2: {token_id} is not an id of the tokenizer, which has 0 to 3\n"
    )


def test_messages_get_ids_writers_and_an_empty_mismatch(conversations: Path) -> None:
    record = json.loads(accepted(*call(conversations, CONVERSATION)))
    assert record["mismatch"] == ""
    assert record["trained"] == [
        '<tool_call>\n{"name": "search", "arguments": {"query": "Byron?", "entities": ["Byron"]}}\n'
        "</tool_call><|im_end|>",
        "So.\nAnswer: a poet<|im_end|>",
    ]
    assert record["masked"] == [
        "\n<|im_start|>user\n<tool_response>\n",
        "A poet &lt;|im_end|&gt;",
        "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ]
    assert [writer for *_, writer in record["token_spans"]] == [
        "model", "frame", "observation", "frame", "model",
    ]  # fmt: skip
    assert record["token_spans"][-1][1] == len(record["token_ids"])
    assert record["prompt_ids"]


def test_another_chat_template_and_its_mismatch(conversations: Path) -> None:
    """Qwen3's template drops the empty think block from all turns but the last."""
    [qwen3] = [file for file in template_files() if file.stem == "qwen3"]
    options = ("--chat-template", str(qwen3), "--no-thinking")
    record = {"messages": CONVERSATION["messages"][1:], "tools": json.dumps([SEARCH])}
    record["messages"][1] = CONVERSATION["messages"][2] | {"reasoning": None}
    status, printed, complaint = steep([*call(conversations, record, *options)])
    assert (status, "in 1 of 1 records" in complaint) == (1, True)
    assert "the template writes" in json.loads(printed)["mismatch"]
    complaint = refused(*call(conversations, record, "--chat-template", "absent.jinja"))
    assert complaint == "error: absent.jinja: no such file; --chat-template takes a template\n"


CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": CONVERSATION["messages"][2]["tool_calls"],
}
LEFT_OUT = "the chat template leaves it out; name a template that writes it with --chat-template"
WITHOUT_TOOLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WITH_CALLS = WITHOUT_TOOLS.replace(
    "<|im_end|>", "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|im_end|>"
)
WITHOUT_SYSTEM = WITHOUT_TOOLS.replace(
    "{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"
)


@pytest.mark.parametrize(
    ("template", "record", "place"),
    [
        (WITHOUT_TOOLS, {"messages": [CONVERSATION["messages"][1], CALLING]}, "messages.1.tool_calls.0"),
        (WITHOUT_TOOLS, CONVERSATION, "tools.0"),
        (WITH_CALLS, CONVERSATION, "tools.0"),  # a call has the name of its tool
        (WITHOUT_SYSTEM, {"messages": [*CONVERSATION["messages"][:2], {"role": "assistant", "content": "x"}]},
         "messages.0.content"),
    ],
)  # fmt: skip
def test_what_a_chat_template_leaves_out_is_named(
    template: str, record: dict, place: str, conversations: Path
) -> None:
    """Before, the end of a turn without its call was trained, with an empty mismatch."""
    file = conversations / "other.jinja"
    file.write_text(template, encoding="utf-8")
    complaint = refused(*call(conversations, record, "--chat-template", str(file)))
    assert f"in.jsonl:1: {place}: {LEFT_OUT}" in complaint
    assert "model.chat_template" in complaint


def test_an_imported_conversation_is_masked_as_its_log(conversations: Path) -> None:
    """Before, its output was masked, which is text for people, with an empty mismatch."""
    row = CONVERSATION | {"question": "Byron?", "answers": ["a poet"]}
    logged = json.loads(accepted(*call(conversations, row)))
    imported = json.loads(
        steep(["import", str(conversations / "in.jsonl"), "--grammar", "tearag"])[1]
    )
    assert (imported["tools"], bool(imported["output"])) == ("", True)
    masked = json.loads(accepted(*call(conversations, imported)))
    for name in ("trained", "masked", "mismatch"):
        assert masked[name] == logged[name]


def test_parse_reads_messages(conversations: Path) -> None:
    file = conversations / "in.jsonl"
    file.write_text(json.dumps(CONVERSATION) + "\n", encoding="utf-8")
    record = json.loads(accepted("parse", file, "--format", "tools", "--grammar", "tearag"))
    assert (record["answer"], record["format_ok"]) == ("a poet", True)
    assert record["steps"][0]["subquery"] == "Byron?"
    assert record["messages"] == CONVERSATION["messages"]
