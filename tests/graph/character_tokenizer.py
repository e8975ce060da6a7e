"""A tokenizer with one token per character, for scripted engines."""

from typing import Any, ClassVar


class CharacterTokenizer:
    """Ids are code points; 0 ends a sequence; chats are written as ``role: content`` lines."""

    eos_token_id = 0
    bos_token_id = pad_token_id = unk_token_id = None
    all_special_ids: ClassVar[list[int]] = [0]
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}
    chat_template = "role: content"

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(token_id) for token_id in ids]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not add_special_tokens, "the template has written the special tokens"
        return {"input_ids": [ord(character) for character in text]}

    def decode(
        self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return "".join(chr(token_id) for token_id in ids if token_id or not skip_special_tokens)

    def apply_chat_template(
        self, chat: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool, **_: Any
    ) -> Any:
        assert not tokenize
        lines = [f"{message['role']}: {message['content']}\n" for message in chat]
        return "".join(lines) + ("assistant: " if add_generation_prompt else "")
