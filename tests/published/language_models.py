"""Two-layer language models with the tokenizers of Llama-3, Qwen2.5 and Qwen3, trained in seconds.

Each has the architecture, the tokenizer and the chat template of its kind: Llama-3 begins with a
beginning-of-text token, has no padding token and ends a turn with ``<|eot_id|>``; Qwen2.5 adds a system
message where there is none, and has more rows of embeddings than tokens. Input: lessons
(`tests.published.lessons`) and a tokenizer. Output: model directories, as from the hub.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipeline.rollout.conversations.chat_template import ChatTemplate
    from tests.published.lessons import Lesson

Family = Literal["llama3", "qwen2.5", "qwen3"]

TOKENIZERS = {"llama3": "llama-3", "qwen2.5": "qwen2.5", "qwen3": "qwen3"}  # in the real data
ROW = 768  # tokens of a training step, at least
LONGEST = 1024  # tokens of a lesson
# Most lessons keep only the ends of prompt and observations: the form of an answer does not depend on the rest.
TAIL, SHORT = 32, 0.75
_RATE = 4e-3
# vLLM's attention on CPUs needs heads of 32 dimensions or a few larger sizes.
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS = 96, 2, 3, 1
_ENDS = {
    "llama3": ("<|eot_id|>", "<|end_of_text|>"),
    "qwen2.5": ("<|im_end|>", "<|endoftext|>"),
    "qwen3": ("<|im_end|>", "<|endoftext|>"),
}


def write_language_model(
    directory: Path,
    family: Family,
    tokenizer: PreTrainedTokenizerBase,
    lessons: Sequence[Encoded],
    *,
    steps: int,
) -> Path:
    """Train a model on lessons in the tokens of ``tokenizer``, and save both; returns the directory.

    The model is trained over the tokens of the lessons and one class for all others, whose logit has the log
    of their number added: in the saved model each of them has the weights of this class.
    """
    import torch

    used = sorted({token for lesson in lessons for token in lesson.ids})
    place = {token: number for number, token in enumerate(used)}
    small = _new_model(family, tokenizer, rows=len(used) + 1)
    rows = math.ceil(len(tokenizer) / 128) * 128
    others = torch.zeros(len(used) + 1)
    others[-1] = math.log(rows - len(used))
    mapped = [Encoded([place[token] for token in one.ids], one.learned) for one in lessons]
    _teach(small, mapped, steps, others)
    model = _new_model(family, tokenizer, rows)
    state = small.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights = state[name][-1:].repeat(rows, 1)
        weights[used] = state[name][:-1]
        state[name] = weights
    model.load_state_dict(state)
    model.bfloat16().save_pretrained(directory)
    source = Path(tokenizer.name_or_path)
    for file in source.iterdir():
        shutil.copyfile(file, directory / file.name)
    return directory


def write_untied(source: Path, directory: Path) -> Path:
    """Copy a model with its output layer as weights of its own, as from 7B on; returns the directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    shared = model.get_input_embeddings().weight
    model.config.tie_word_embeddings = False
    model.lm_head.weight = type(shared)(shared.detach().clone())
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    return directory


def _new_model(family: Family, tokenizer: Any, rows: int) -> PreTrainedModel:
    """A newly initialized model of two layers with grouped-query attention and ``rows`` embeddings."""
    import torch
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(0)
    ends = tokenizer.convert_tokens_to_ids(list(_ENDS[family]))
    shape: dict[str, Any] = {
        "vocab_size": rows, "hidden_size": _HIDDEN, "intermediate_size": 3 * _HIDDEN,
        "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": {"llama3": 8192, "qwen2.5": 32768, "qwen3": 40960}[family],
        "initializer_range": 0.05, "tie_word_embeddings": family != "llama3",  # as the small ones
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends[0], "pad_token_id": None,
    }  # fmt: skip
    model: PreTrainedModel
    if family == "llama3":
        model = LlamaForCausalLM(LlamaConfig(**shape))
    elif family == "qwen2.5":
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=_HIDDEN // _HEADS, **shape))
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, do_sample=False
    )
    return model


@dataclass(frozen=True)
class Encoded:
    """Token ids of a chat, and which of them are learned."""

    ids: list[int]
    learned: list[bool]


def encode(tokenizer: Any, lesson: Lesson) -> Encoded:
    """The lesson as the templates of its family render it, without its inserted observations."""
    prompt = [{"role": message.role, "content": message.content} for message in lesson.prompt]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    learned = [False] * len(ids)
    for piece, by_model in lesson.pieces:
        added = tokenizer.encode(piece, add_special_tokens=False)
        ids += added
        learned += [by_model] * len(added)
    ids.append(tokenizer.eos_token_id)
    learned.append(True)
    return Encoded(ids[:LONGEST], learned[:LONGEST])


def encode_conversation(chat: ChatTemplate, messages: list[Any]) -> Encoded:
    """Encode a conversation with tool calls; the turns of the model are learned."""
    built = chat.build(messages)
    assert built.mismatch == ""
    learned = [False] * len(built.prompt_ids)
    for start, end, writer in built.token_spans:
        learned += [writer == "model"] * (end - start)
    return Encoded((built.prompt_ids + built.token_ids)[:LONGEST], learned[:LONGEST])


def shortened(lesson: Encoded) -> Encoded:
    """The lesson with only the last tokens before each piece that is learned."""
    kept = [number for number in range(len(lesson.ids)) if any(lesson.learned[number:][: TAIL + 1])]
    return Encoded([lesson.ids[n] for n in kept], [lesson.learned[n] for n in kept])


def _teach(model: PreTrainedModel, lessons: Sequence[Encoded], steps: int, added: Any) -> None:
    """Train all weights on rows of packed lessons; ``added`` is added to the logits."""
    import torch

    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98))
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / 20) * (1 - 0.95 * step / steps)
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        while len(ids) < ROW:
            lesson = rng.choice(lessons)
            if rng.random() < SHORT:
                lesson = shortened(lesson)
            ids += lesson.ids
            wanted = zip(lesson.ids, lesson.learned, strict=True)
            labels += [token if learned else -100 for token, learned in wanted]
            positions += range(len(lesson.ids))
        # The mask of packed rows follows from the positions, which begin again with every lesson.
        output = model(
            input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]), use_cache=False
        )
        loss = torch.nn.functional.cross_entropy(
            output.logits[0, :-1].float() + added, torch.tensor(labels[1:])
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
