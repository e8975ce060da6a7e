"""Open a model's tokenizer with its chat template; the interface of a tokenizer.

Input: a model directory and the setting ``model.chat_template``. Output: a `Tokenizer`, the part of
transformers' ``PreTrainedTokenizer`` that the code uses. Functions that take a tokenizer name this
type, so that any object with these members works (tests pass small fakes) and transformers itself
is imported only where a tokenizer is loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from pipeline.core.errors import ConfigError, DependencyError, model_problem
from pipeline.core.input_files import read_text
from pipeline.core.model_files import PACKAGE


def template_identity(setting: str) -> Path | str:
    """The file that ``model.chat_template`` names, or the template itself, which holds a brace.

    ``package:NAME/FILE`` is a file of an installed package.
    """
    if "{" in setting or not setting.startswith(PACKAGE):
        return setting if "{" in setting else Path(setting)
    package, _, file = setting.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    return Path(setting) if spec is None or not spec.origin else Path(spec.origin).parent / file


def read_template(setting: str) -> str:
    """The Jinja template of ``model.chat_template``.

    Raises ConfigError when it is neither a file nor a template, InputError when the file cannot be
    read.
    """
    template = template_identity(setting)
    if isinstance(template, str):
        return template
    if not template.is_file():
        raise ConfigError(
            f"model.chat_template is {setting!r}, which is neither a file nor a Jinja template; "
            "correct the path"
        )
    return read_text(template)


def model_tokenizer(model: Path | str, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a model; ``chat_template`` is the setting ``model.chat_template``.

    Raises DependencyError when the tokenizer cannot be read, and what `read_template` raises.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises no narrower type
        raise DependencyError(
            f"{model}: no tokenizer could be read: {model_problem(error)}"
        ) from None
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def is_markup(token: AddedToken) -> bool:
    """Whether an added token is more than a word, a character or white space."""
    text = token.content
    return token.special or (len(text) > 1 and not text.isspace() and not text.isalnum())


class AddedToken(Protocol):
    """A token that was added to the vocabulary; ``special`` marks a control token."""

    content: str
    special: bool


class Tokenizer(Protocol):
    """Text to token ids and back, with the control tokens and the chat template of one model.

    A role that the model does not use (often BOS or the unknown token) has the id and text None.
    ``chat_template`` may be several templates by name, such as default and tool_use.
    """

    chat_template: str | Mapping[str, str] | None
    name_or_path: str
    bos_token: str | None
    eos_token: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    all_special_ids: Sequence[int]
    added_tokens_decoder: Mapping[int, AddedToken]

    def __hash__(self) -> int: ...

    @overload
    def __call__(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool = ...
    ) -> Mapping[Literal["input_ids"], list[int]]: ...

    @overload
    def __call__(
        self, text: list[str], *, add_special_tokens: bool, split_special_tokens: bool = ...
    ) -> Mapping[Literal["input_ids"], list[list[int]]]:
        """Ids as ``"input_ids"``; ``split_special_tokens`` reads control tokens as plain text."""

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool,
        **arguments: Any,
    ) -> str: ...
