"""Gold answers in every form in which files hold them.

Input: a value of a row. Output: answers as texts. A value is a text, a number, a list, an object
(``{"target": […]}`` of verl, ``{"text": […]}`` of SQuAD, ``{"Value": …, "Aliases": […]}``), or the
text of one of these: JSON, or what Python and NumPy print (``['a', 'b']``, ``['a' 'b']``,
``{'target': array(['a'], dtype=object)}``). True and False are yes and no, as the published data
sets write them.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import parse_json
from pipeline.knowledge.corpus.raw_records import RawRecord, encodable

BLANK_ANSWERS = "blank answers"  # note of records; the name is part of reports
# Names of the field, the first that has an answer counts; ``answer`` may be a prediction.
GOLD = (
    "golden", "golden_answers", "answers", "gold", "ground_truth", "gts", "gt", "target",
    "answer", "possible_answers",
)  # fmt: skip
_INSIDE = (*GOLD, "text", "value", "aliases")  # names of answers in an object, in this order
# Texts that print a list or an object. A phrase in brackets is an answer.
_LISTED = re.compile(
    r"""\s*(array\(|[\[{]\s*['"\[{]|\[([^,'"\n]*[,'"\n].*|[\s\d.-]*)\]\s*$"""
    r"""|\(\s*['"].*['"],?\s*\)\s*$)""",
    re.DOTALL,
)
_PRINTED = {"array", "np", "numpy", "str_", "int64", "int32", "float64", "float32", "bool_"}
_MAX_TEXT = 1 << 20  # characters of a list as text


def answer_texts(value: Any) -> Iterator[str | None]:
    """The answers of a value; None for each that is null.

    Raises ValueError for a value of another form, and for a text that begins as a list or an
    object and is none.
    """
    if value is None or value != value:
        yield None
    elif isinstance(value, bool):
        yield "yes" if value else "no"
    elif isinstance(value, int | float):
        yield str(int(value) if value == int(value) else value)
    elif isinstance(value, dict):
        found = [value[name] for inside in _INSIDE for name in value if name.lower() == inside]
        if not found:
            raise ValueError
        yield from answer_texts(found)
    elif isinstance(value, list | tuple):
        for item in value:
            printed = isinstance(item, str) and _LISTED.match(item)
            inner = _list_of_texts(item) if printed else item
            yield from [inner] if isinstance(inner, str) else answer_texts(inner)
    elif not isinstance(value, str):
        raise ValueError
    elif _LISTED.match(value):
        yield from answer_texts(literal(value))
    else:
        yield value


def _list_of_texts(item: str) -> Any:
    """The list of texts that a text prints, or the text: an alias may be in brackets."""
    try:
        value = literal(item)
    except ValueError:
        return item
    texts = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    return value if texts else item


def literal(text: str) -> Any:
    """The value of a text that is JSON, or a value as Python or NumPy prints it.

    Raises ValueError for another text. No code is run.
    """
    try:
        return parse_json(text, data=True)
    except InputError:
        pass
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            value = ast.literal_eval(_with_commas(text[: _MAX_TEXT + 1]))
        value = parse_json(json.dumps(value), data=True)  # Python has other names and numbers
        known = encodable(value)
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        known = False
    if not known or len(text) > _MAX_TEXT:
        raise ValueError("neither JSON nor a Python literal")
    return value


def listed(row: RawRecord, name: str) -> Any:
    """The value of a field; a text that prints a list or an object becomes it.

    Raises InputError when such a text has no value.
    """
    value = row.find(name)
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return literal(value)
    except ValueError:
        raise row.expected(name, "a list", value) from None


def _with_commas(text: str) -> str:
    """The text with the commas that NumPy leaves out, and without its names of types."""
    parts: list[str] = []
    ended = dtype = False  # whether a value ended just now; whether this is the name of a type
    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        kind, string = token.type, token.string
        if kind in (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
            continue
        dtype = (dtype or string == "dtype") and string != ")"
        if dtype or string in _PRINTED or string == ".":
            continue
        is_value = kind in (tokenize.STRING, tokenize.NUMBER, tokenize.NAME)
        if ended and (is_value or string in ("[", "(", "{")):
            parts.append(",")
        parts.append("None" if string == "nan" else string)
        ended = is_value or string in ("]", ")", "}")
    return " ".join(parts)


def gold_answers(row: RawRecord) -> list[str]:
    """The distinct answers of the first field of `GOLD` that has any; empty when none has.

    Raises InputError when a field has another form.
    """
    fields = (name for name in GOLD if name in row.value)
    return next(filter(None, (distinct_answers(row, name) for name in fields)), [])


def distinct_answers(row: RawRecord, name: str) -> list[str]:
    """The distinct answers of a field, in order; null and blank ones are noted (`BLANK_ANSWERS`).

    Raises InputError when it has another form.
    """
    value, distinct = row.value[name], dict[str, None]()
    try:
        texts = list(answer_texts(value))
    except ValueError:
        raise row.expected(name, "a text or a list", value, "write lists as JSON") from None
    for text in texts:
        if text is None or not text.strip():
            row.notes[BLANK_ANSWERS] += 1
        else:
            distinct[row.checked_text(text, name)] = None
    return list(distinct)
