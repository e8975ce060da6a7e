"""Two-layer language models shaped like Llama-3-Instruct and Qwen2.5-Instruct, trained in seconds.

Each has the architecture, the special tokens and the chat template of its kind: Llama-3 begins
with a beginning-of-text token, has no padding token and ends a turn with ``<|eot_id|>``; Qwen2.5 has no
beginning-of-text token, adds a system message where there is none, and has more rows of embeddings than
tokens. Input: lessons (`tests.published.lessons`). Output: model directories, as from the hub.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.conversations.chat_template import ChatTemplate
from pipeline.grammars.tokenizer import model_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from tests.published.lessons import Lesson

Family = Literal["llama3", "qwen2.5"]

VOCABULARY = 1500
ROW = 768  # tokens of a training step, at least
LONGEST = 1024  # tokens of a lesson
# Most lessons keep only the ends of prompt and observations: the form of an answer does not depend on the rest.
TAIL, SHORT = 32, 0.75
_RATE = 4e-3
# vLLM's attention on CPUs needs heads of 32 dimensions or a few larger sizes.
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS = 96, 2, 3, 1

LLAMA3_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPLIT = {  # how text is cut before byte pairs are merged; Llama-3 keeps up to three digits together
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2.5": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_SPECIAL = {
    "llama3": (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|reserved_special_token_0|>"),
    ),
    "qwen2.5": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
}
_END = {"llama3": "<|eot_id|>", "qwen2.5": "<|im_end|>"}


def write_language_model(
    directory: Path, family: Family, lessons: Sequence[Lesson], *, steps: int, seed: int = 0
) -> Path:
    """Train a tokenizer and a model on the lessons and save both; returns the directory."""
    tokenizer = train_tokenizer(family, (text for lesson in lessons for text in lesson.texts))
    model = new_model(family, tokenizer, seed)
    teach(model, [encode(tokenizer, lesson) for lesson in lessons], steps=steps, seed=seed)
    model.bfloat16().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
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


def write_with_tokenizer(
    source: Path,
    template: str,
    tool: Any,
    directory: Path,
    conversations: Sequence[list[Any]],
    *,
    steps: int,
) -> Path:
    """A model shaped like Qwen3 with the real tokenizer in ``source``; returns the directory.

    It is trained over the tokens of the conversations and one class for all others, whose logit has the log
    of their number added: in the saved model each of them has the weights of this class.
    """
    import shutil

    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer: Any = model_tokenizer(source, template)
    chat = ChatTemplate(tokenizer, [tool], thinking=False)
    lessons = []
    for messages in conversations:
        built = chat.build(messages)
        assert built.mismatch == ""
        learned = [False] * len(built.prompt_ids)
        for start, end, writer in built.token_spans:
            learned += [writer == "model"] * (end - start)
        lessons.append(Encoded((built.prompt_ids + built.token_ids)[:LONGEST], learned[:LONGEST]))
    used = sorted({token for lesson in lessons for token in lesson.ids})
    place = {token: number for number, token in enumerate(used)}
    rows = math.ceil(len(tokenizer) / 128) * 128
    torch.manual_seed(0)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    shape: dict[str, Any] = {
        "hidden_size": _HIDDEN, "intermediate_size": 3 * _HIDDEN, "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": 40960, "initializer_range": 0.05, "tie_word_embeddings": True,
        "eos_token_id": ends[0], "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    small = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(used) + 1, **shape))
    others = torch.zeros(len(used) + 1)
    others[-1] = math.log(rows - len(used))
    mapped = [Encoded([place[token] for token in one.ids], one.learned) for one in lessons]
    teach(small, mapped, steps=steps, seed=0, added=others)
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=rows, **shape))
    state, name = small.state_dict(), "model.embed_tokens.weight"
    weights = state[name][-1:].repeat(rows, 1)
    weights[used] = state[name][:-1]
    model.load_state_dict({**state, name: weights, "lm_head.weight": weights})
    model.generation_config = GenerationConfig(eos_token_id=ends, do_sample=False)
    model.bfloat16().save_pretrained(directory)
    for file in source.iterdir():
        shutil.copyfile(file, directory / file.name)
    return directory


def train_tokenizer(family: Family, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the control tokens and the template of its family."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT[family]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = _SPECIAL[family]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_special_tokens(list(special))  # behind the ordinary tokens, as in both families
    if family == "llama3":
        begin = special[0]
        core.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin}:1 $B:1",
            special_tokens=[(begin, core.token_to_id(begin))],
        )
    ends = {"bos_token": special[0]} if family == "llama3" else {"pad_token": special[0]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=_END[family],
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
        **ends,
    )
    tokenizer.chat_template = LLAMA3_TEMPLATE if family == "llama3" else QWEN_TEMPLATE
    return tokenizer


def new_model(family: Family, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A newly initialized model of two layers with grouped-query attention."""
    import torch
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    torch.manual_seed(seed)
    rows = len(tokenizer) if family == "llama3" else math.ceil(len(tokenizer) / 64) * 64
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (_END[family], _SPECIAL[family][0])]
    if family == "llama3":
        ends[1] = tokenizer.convert_tokens_to_ids("<|end_of_text|>")
    shape: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": _HIDDEN,
        "intermediate_size": 3 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": 8192 if family == "llama3" else 32768,
        "initializer_range": 0.05,
        "tie_word_embeddings": family == "qwen2.5",  # as the 3B model
        "bos_token_id": tokenizer.convert_tokens_to_ids(_SPECIAL[family][0]),
        "eos_token_id": ends[0],
    }
    if family == "llama3":
        model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**shape))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    model.generation_config = GenerationConfig(
        bos_token_id=shape["bos_token_id"], eos_token_id=ends, do_sample=False
    )
    return model


@dataclass(frozen=True)
class Encoded:
    """Token ids of a chat, and which of them are learned."""

    ids: list[int]
    learned: list[bool]


def encode(tokenizer: PreTrainedTokenizerFast, lesson: Lesson) -> Encoded:
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


def shortened(lesson: Encoded) -> Encoded:
    """The lesson with only the last tokens before each piece that is learned."""
    kept = [number for number in range(len(lesson.ids)) if any(lesson.learned[number:][: TAIL + 1])]
    return Encoded([lesson.ids[n] for n in kept], [lesson.learned[n] for n in kept])


def teach(
    model: PreTrainedModel, lessons: Sequence[Encoded], *, steps: int, seed: int, added: Any = 0.0
) -> None:
    """Train all weights on rows of packed lessons; ``added`` is added to the logits."""
    import torch

    rng = random.Random(seed)
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
