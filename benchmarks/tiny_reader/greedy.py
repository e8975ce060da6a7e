"""Batched greedy decoding for the evaluation of the tiny reader.

Purpose: evaluate within minutes, without an inference engine. Input: token ids of prompts, and stop
strings for each. Output: token ids of the completions. Prompts are padded on the left; a completion
ends with a stop string or the end of the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


class GreedyDecoder:
    """A model in evaluation mode with its tokenizer; decodes `batch_size` prompts at a time."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch_size: int = 48
    ) -> None:
        self.model, self.tokenizer, self.batch_size = model.eval(), tokenizer, batch_size

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without added special tokens."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def generate(
        self, prompts: Sequence[list[int]], stops: Sequence[tuple[str, ...]], max_tokens: int
    ) -> list[list[int]]:
        """Token ids of the completions, including the stop string or the end of the turn.

        Args:
            prompts: token ids, one list per prompt.
            stops: strings that end the completion of each prompt, besides the end of the turn.
            max_tokens: tokens of a completion at most.
        """
        completions: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for low in range(0, len(order), self.batch_size):
            rows = order[low : low + self.batch_size]
            batch = self._generate_batch(
                [prompts[row] for row in rows], [stops[row] for row in rows], max_tokens
            )
            for row, completion in zip(rows, batch, strict=True):
                completions[row] = completion
        return completions

    def _generate_batch(
        self, prompts: list[list[int]], stops: list[tuple[str, ...]], max_tokens: int
    ) -> list[list[int]]:
        import torch

        end = self.tokenizer.eos_token_id
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.tokenizer.pad_token_id)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        completions: list[list[int]] = [[] for _ in prompts]
        done = [False] * len(prompts)
        cache, positions = None, (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            for _ in range(max_tokens):
                result = self.model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = result.past_key_values
                tokens = result.logits[:, -1].argmax(-1)
                for row, token in enumerate(tokens.tolist()):
                    if done[row]:
                        continue
                    completions[row].append(token)
                    text = self.tokenizer.decode(completions[row][-24:])
                    done[row] = token == end or any(stop in text for stop in stops[row])
                if all(done):
                    break
                ids = tokens[:, None]
                mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=torch.long)], 1)
                positions = positions[:, -1:] + 1
        return completions
