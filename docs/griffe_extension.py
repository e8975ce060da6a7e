"""Additions to the reference of the Python API (for mkdocstrings, see ``mkdocs.yml``).

- Doctests in a docstring become code blocks.
- Fields of a class with comments, as in `pipeline.core.records`, become its table of attributes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from griffe import Class, Extension, Object, ObjectNode

_DOCTEST = re.compile(r"^>>> .*(?:\n(?:>>>|\.\.\.).*)*", re.MULTILINE)
_BESIDE = re.compile(r".*?\s{2}# (?P<comment>.+)")
_ABOVE = re.compile(r"\s*# (?P<comment>.+)")


class FieldsAndDoctests(Extension):
    """Completes the docstrings that Griffe reads."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Put the doctests of a docstring into code blocks."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, node: ast.AST | ObjectNode, cls: Class, **_: Any) -> None:
        """Add the commented fields of a class to its docstring."""
        if not isinstance(node, ast.ClassDef) or cls.docstring is None:
            return
        if isinstance(cls.filepath, Path):  # a list for namespace packages
            cls.docstring.value += attributes(node, cls.lines_collection[cls.filepath])


def fenced(docstring: str) -> str:
    """The docstring with each doctest in a Markdown code block."""
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", docstring)


def attributes(node: ast.ClassDef, lines: list[str]) -> str:
    """The section *Attributes* of the fields of a class; empty when no field has a comment."""
    fields = [
        (statement.target.id, comment_of(statement, lines))
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]
    if not any(comment for _, comment in fields):
        return ""
    return "\n\nAttributes:\n" + "".join(
        f"    {name}: {comment or '–'}\n" for name, comment in fields
    )


def comment_of(statement: ast.stmt, lines: list[str]) -> str:
    """The comment beside the statement, else the comment lines directly above, else nothing."""
    beside = _BESIDE.fullmatch(lines[(statement.end_lineno or statement.lineno) - 1])
    if beside:
        return beside["comment"]
    above: list[str] = []
    for line in reversed(lines[: statement.lineno - 1]):
        match = _ABOVE.fullmatch(line)
        if match is None:
            break
        above.insert(0, match["comment"])
    return " ".join(above)
