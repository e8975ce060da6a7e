"""A tokenizer with one token per character, for scripted engines."""

from typing import Any


class CharacterTokenizer:
    """Ids are code points; 0 ends a sequence; chats are written as ``role: content`` lines."""

    eos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not add_special_tokens, "the template has written the special tokens"
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(one) for one in ids if one or not skip_special_tokens)

    def apply_chat_template(
        self, chat: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        assert not tokenize
        lines = [f"{message['role']}: {message['content']}\n" for message in chat]
        return "".join(lines) + ("assistant: " if add_generation_prompt else "")
