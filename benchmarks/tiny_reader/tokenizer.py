"""Byte-level BPE tokenizer of the tiny reader.

Purpose: tokenize a name identically in every position; copying a name from the context then means
copying its tokens. A capitalized word therefore never includes a space. The space before it belongs
to the preceding lower-case word or punctuation mark (" in ", ", "); inside a name it is a separate
token. Punctuation marks are never merged with one another, because a stop string must not end
inside a token. Input: texts. Output: a `PreTrainedTokenizerFast` with a ChatML template; grammar
tags are ordinary text. Rejected: the usual leading-space tokens, where `"Foo` and ` Foo` share no
token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IM_START, IM_END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
VOCABULARY = 3072

# The alternatives, in order: a lower-case word with the space before it, and with the space after
# it if a capital letter or digit follows; a capitalized word; one or two digits; a punctuation
# mark, with the space after it under the same condition; one whitespace character.
_PIECES = r" ?[a-z]+(?: (?=[A-Z0-9]))?|[A-Z][a-z]*|[0-9]{1,2}|[^\sA-Za-z0-9](?: (?=[A-Z0-9]))?|\s"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(
    texts: Iterable[str], *, vocabulary: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the texts.

    Args:
        texts: training text.
        vocabulary: number of tokens, including the special tokens and the 256 bytes.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
