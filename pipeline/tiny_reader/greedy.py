"""Greedy continuation of many prompts at once, for the evaluation of the tiny reader.

Purpose: an evaluation in the minutes between two checkpoints, without an engine. Input: token ids
of prompts, and for each the strings that end its continuation. Output: the continuations' texts.
Prompts are padded on the left; a row ends with its stop string or the end of its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


class Greedy:
    """A model and its tokenizer; `batch` prompts are continued together."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch: int = 48
    ) -> None:
        self.model, self.tokenizer, self.batch = model.eval(), tokenizer, batch

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens added."""
        found: list[int] = self.tokenizer.backend_tokenizer.encode(
            text, add_special_tokens=False
        ).ids
        return found

    def continue_(
        self, prompts: Sequence[list[int]], stops: Sequence[tuple[str, ...]], most: int
    ) -> list[list[int]]:
        """Continuations as token ids; the stop string and the end of turn are included.

        Args:
            prompts: token ids, one list per row.
            stops: strings that end a row's continuation, besides the end of the turn.
            most: tokens of a continuation at most.
        """
        out: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for low in range(0, len(order), self.batch):
            rows = order[low : low + self.batch]
            texts = self._batch([prompts[r] for r in rows], [stops[r] for r in rows], most)
            for row, text in zip(rows, texts, strict=True):
                out[row] = text
        return out

    def _batch(
        self, prompts: list[list[int]], stops: list[tuple[str, ...]], most: int
    ) -> list[list[int]]:
        import torch

        end = self.tokenizer.eos_token_id
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.tokenizer.pad_token_id)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        written: list[list[int]] = [[] for _ in prompts]
        done = [False] * len(prompts)
        cache, positions = None, (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            for _ in range(most):
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
                    written[row].append(token)
                    text = self.tokenizer.decode(written[row][-24:])
                    done[row] = token == end or any(stop in text for stop in stops[row])
                if all(done):
                    break
                ids = tokens[:, None]
                mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=torch.long)], 1)
                positions = positions[:, -1:] + 1
        return written
