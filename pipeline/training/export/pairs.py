"""Preference pairs in the forms of other trainers.

Input: the records of a round's ``pairs.parquet``, or of a file of ``steep pair``. Output: a
directory that ``datasets.load_dataset`` reads, with a card:

- ``trl``: messages, and the recorded ids with their masks, which the trainer in `recorded_ids.py`
  beside them trains on;
- ``llama-factory``: ``pairs.jsonl`` and ``dataset_info.json`` of a ranking data set;
- ``kto``: one row per trajectory, or part of one in a step pair, with a label, for losses without
  pairs;
- ``parquet``: all fields, with each reward term as a number.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from pipeline.core.atomic import json_text, parquet_writer, write_json, write_text
from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError
from pipeline.core.record_io import ROWS_PER_GROUP, arrow_type, as_json, write_jsonl
from pipeline.core.records import ChatMessage, Message, Pair
from pipeline.core.spans import written_mask
from pipeline.training.export.directory import card, new_directory
from pipeline.training.export.sources import Source

Form: TypeAlias = Literal["trl", "llama-factory", "kto", "parquet"]
Row: TypeAlias = dict[str, Any]
Table: TypeAlias = tuple[Iterator[Row], dict[str, pa.DataType]]
_SIDES = ("chosen", "rejected")
_Side: TypeAlias = tuple[str, bytes]
_TRAINER = Path(__file__).parents[1] / "recorded_ids.py"
# How LLaMA-Factory finds the parts of a ranking data set in the form of chat messages.
_DATASET_INFO = {
    "file_name": "pairs.jsonl",
    "ranking": True,
    "formatting": "sharegpt",
    "columns": {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"},
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "system_tag": "system",
    },
}


def export_pairs(
    read: Callable[[], Iterable[Pair]],
    directory: Path,
    form: Form,
    *,
    name: str,
    sources: Mapping[str, Sequence[Source]] | None = None,
) -> Mapping[str, int]:
    """Write the pairs that ``read`` gives to a new ``directory``; returns counts for the user.

    ``read`` is called twice, so that no more than a group of rows is in memory. ``name`` is the
    title of the card. ``sources`` are the passages that a trajectory retrieved, by its id, for the
    forms ``trl`` and ``parquet``. Raises InputError when there is no pair, a pair has no texts, or
    the directory exists.
    """
    survey = _Survey(read(), sources or {})
    if form == "llama-factory" and survey.tools:
        raise InputError(
            "the form llama-factory has one message per side, and these pairs are conversations "
            "with tool calls; use --to trl or kto"
        )
    with new_directory(directory) as output:
        if form == "llama-factory":
            count = write_jsonl(output / "pairs.jsonl", map(_ranking_row, read()))
            write_json(output / "dataset_info.json", {"steep_pairs": _DATASET_INFO})
        else:
            count = _write(output / "pairs.parquet", *_TABLES[form](read(), survey))
        if form == "trl" and not survey.without_ids:
            write_text(output / _TRAINER.name, _TRAINER.read_text(encoding="utf-8"))
        text = card(
            "pairs.md.j2", name=name, form=form, rows=count, with_ids=not survey.without_ids,
            terms=survey.terms, tools=survey.tools, sources=bool(survey.sources),
        )  # fmt: skip
        write_text(output / "README.md", text)
    counts = {"pairs": survey.pairs}
    if form == "kto":
        counts |= {"trajectories": count, "contradictory": len(survey.contradictory)}
    elif form in ("trl", "parquet") and survey.without_ids:
        counts["without token ids, so no row has a mask"] = survey.without_ids
    return counts


class _Survey:
    """What must be known of all pairs before the first is written.

    ``terms`` are the names of the reward terms that are numbers, ``without_ids`` counts pairs, and
    ``contradictory`` are the sides (`_side`) that one pair prefers and another rejects.
    """

    def __init__(self, pairs: Iterable[Pair], sources: Mapping[str, Sequence[Source]]) -> None:
        self.pairs, self.without_ids, self.tools, self.sources = 0, 0, False, sources
        terms: set[str] = set()
        sides: tuple[set[_Side], set[_Side]] = (set(), set())
        for pair in pairs:
            self.pairs += 1
            if not (pair.prompt and pair.chosen and pair.rejected):
                raise InputError(
                    f"pair {pair.chosen_id} > {pair.rejected_id} has no texts; give trajectories "
                    "with question and output to steep pair"
                )
            self.tools |= pair.tools is not None
            self.without_ids += not (pair.prompt_ids and pair.chosen_ids and pair.rejected_ids)
            for found, side in zip(sides, _SIDES, strict=True):
                found.add(_side(pair, side))
            for rewards in (pair.chosen_rewards, pair.rejected_rewards):
                terms.update(name for name, value in rewards.items() if _is_number(value))
        if not self.pairs:
            raise InputError("there is no pair to export; the stage pair and steep pair say why")
        self.terms = sorted(terms)
        self.contradictory = sides[0] & sides[1]


def _side(pair: Pair, side: str) -> _Side:
    """The id of a side, and a digest of its messages: a step pair has a part of a trajectory."""
    messages = map(as_json, [*pair.prompt, *getattr(pair, side)])
    return getattr(pair, f"{side}_id"), digest(*map(json_text, messages))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(pairs: Iterable[Pair], survey: _Survey, *names: str) -> Table:
    """Messages, kind, ids and masks where the pairs have them, rewards, sources, and ``names``."""
    ids = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")
    own = [*(["tools"] if survey.tools else ()), *(() if survey.without_ids else ids)]
    columns = ["prompt", *_SIDES, "question_id", "kind", *own, *names]

    def row(pair: Pair) -> Row:
        masks = {f"{side}_mask": written_mask(getattr(pair, f"{side}_spans")) for side in _SIDES}
        return (
            as_json(pair)
            | masks
            | {f"{s}_sources": survey.sources.get(getattr(pair, f"{s}_id"), ()) for s in _SIDES}
            | {
                f"{side}_rewards": {
                    name: value if _is_number(value) else None
                    for name, value in getattr(pair, f"{side}_rewards").items()
                    if name in survey.terms
                }
                for side in _SIDES
            }
        )

    hints = typing.get_type_hints(Pair) | dict.fromkeys(("chosen_mask", "rejected_mask"), list[int])
    types = {name: arrow_type(hints[name]) for name in columns} | dict.fromkeys(
        _SIDES, _messages(survey)
    )
    if survey.terms:
        terms = pa.struct([(name, pa.float64()) for name in survey.terms])
        types |= {f"{side}_rewards": terms for side in _SIDES}
    if survey.sources:
        types |= {f"{side}_sources": arrow_type(list[Source]) for side in _SIDES}
    return map(row, pairs), types


def _messages(survey: _Survey) -> pa.DataType:
    """The type of a side: without fields that only conversations have, where there is none."""
    return arrow_type(list[ChatMessage] if survey.tools else list[Message])


def _kto(pairs: Iterable[Pair], survey: _Survey) -> Table:
    """Each side once, with its label; contradictory ones are left out."""

    def rows() -> Iterator[Row]:
        seen = set(survey.contradictory)
        for pair in pairs:
            for side in _SIDES:
                if (own := _side(pair, side)) not in seen:
                    seen.add(own)
                    texts = {"prompt": pair.prompt, "completion": getattr(pair, side)}
                    messages = {key: list(map(as_json, value)) for key, value in texts.items()}
                    facts = {"label": side == "chosen", "trajectory_id": own[0]}
                    yield messages | facts | {"tools": pair.tools}

    types = {"prompt": arrow_type(list[Message]), "completion": _messages(survey)}
    types |= {"label": pa.bool_(), "trajectory_id": pa.string()}
    return rows(), types | ({"tools": pa.string()} if survey.tools else {})


_TABLES: dict[str, Callable[[Iterable[Pair], _Survey], Table]] = {
    "trl": _columns,
    "kto": _kto,
    "parquet": lambda pairs, survey: _columns(
        pairs, survey, "chosen_id", "rejected_id", "policy", "round"
    ),
}


def _ranking_row(pair: Pair) -> Row:
    """A row for LLaMA-Factory, whose sides are one message each."""
    return {
        "prompt": list(map(as_json, pair.prompt)),
        **{side: as_json(getattr(pair, side)[0]) for side in _SIDES},
    }


def _write(path: Path, rows: Iterator[Row], types: dict[str, pa.DataType]) -> int:
    """Write rows as Parquet and return their number; keys without a column are left out."""
    schema = pa.schema(list(types.items()))
    count = 0
    with parquet_writer(path, schema) as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count
