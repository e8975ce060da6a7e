"""A template that rewrites earlier turns or has no tools is named before a run, with a template that works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.errors import InputError
from pipeline.engine.check.models import template_note, template_notes
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.steps import tool_format
from pipeline.rollout.conversations.template_check import rewriting_note, working_template
from tests.conversations.shipped_templates import FILES, byte_tokenizer
from tests.real_tokenizers import real_tokenizer

PACKAGE = "package:trl/chat_templates"


def settings(base: Path, *overrides: str):
    changed = ("start=base", "format=tools", f"model.base={base}", *overrides)
    return load("embedded-search-r1", changed)


def with_template(data: Path, name: str, end: str, folder: Path) -> Path:
    """A directory with the chat template of a real model and a tokenizer of bytes."""
    of_model = (data / "tokenizers" / name / "tokenizer_config.json").read_text("utf-8")
    tokenizer = byte_tokenizer(json.loads(of_model)["chat_template"])
    tokenizer.eos_token = end
    tokenizer.save_pretrained(folder)
    return folder


def test_the_note_names_the_first_difference_and_the_template_that_works(
    real_data: Path, tmp_path: Path
) -> None:
    base = with_template(real_data, "qwen3", "<|im_end|>", tmp_path)
    [note] = template_notes(settings(base, "model.thinking=false"))
    assert "rewrites earlier turns (after 'im_start|>assistant\\n' the template writes 'I" in note
    assert note.endswith(f"this one works: model.chat_template={PACKAGE}/qwen3_training.jinja")
    tool = tool_format("search-r1").tool
    patched = real_tokenizer(real_data, "qwen3", FILES["qwen3_training"])
    assert rewriting_note(ChatTemplate(patched, [tool], thinking=False)) == ""
    assert rewriting_note(ChatTemplate(real_tokenizer(real_data, "qwen2.5"), [tool])) == ""


def test_a_template_without_tools_is_a_fault(real_data: Path, tmp_path: Path) -> None:
    base = with_template(real_data, "llama-3", "<|eot_id|>", tmp_path)
    with pytest.raises(InputError, match=r"leaves out the tools.*=.*/llama3_1\.jinja"):
        template_note(settings(base), base)


def test_the_lineage_tells_templates_and_thinking_apart(real_data: Path) -> None:
    tokenizer = real_tokenizer(real_data, "qwen3")
    tool = tool_format("tearag").tool
    off, on = (ChatTemplate(tokenizer, [tool], thinking=on).identity for on in (False, True))
    assert off == {"sha256": off["sha256"], "thinking": False, "date": "26 Jul 2024"}
    assert on == off | {"thinking": True}
    assert rewriting_note(ChatTemplate(tokenizer, [tool], thinking=True)) == ""
    tokenizer.chat_template += " "
    assert ChatTemplate(tokenizer).identity["sha256"] != off["sha256"]


# Of SmolLM2-Instruct (HuggingFaceTB/SmolLM2-135M-Instruct): no tools, and no start of the text.
PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)


@pytest.mark.parametrize(
    ("name", "start", "expected"),
    [
        ("qwen2.5", "<|im_start|>", "qwen2_5.jinja"),
        ("qwen3", "<|im_start|>", "qwen2_5.jinja"),
        ("qwen2.5", None, "lfm2_2_5.jinja"),
        ("llama-3", "<|begin_of_text|>", "llama3_1.jinja"),
    ],
)
def test_a_closed_think_block_comes_before_likeness_and_likeness_before_length(
    real_data: Path, name: str, start: str | None, expected: str
) -> None:
    """Nemotron's prompts are as like as Qwen2.5's, come first in the alphabet, and open a think block."""
    tokenizer = real_tokenizer(real_data, name)
    if name != "llama-3":
        tokenizer.chat_template = PLAIN
    tokenizer.bos_token = start  # LFM2's templates write it, here twice
    found = working_template(ChatTemplate(tokenizer, [tool_format("tearag").tool]))
    assert found == f"{PACKAGE}/{expected}"
