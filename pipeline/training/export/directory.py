"""A new directory that appears complete or not at all, and the cards in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.atomic import json_text, place
from pipeline.core.errors import InputError


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A temporary directory beside ``path``, renamed to it when the block ends normally.

    Raises InputError when ``path`` exists, unless it is an empty directory.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists; name a new directory, or remove it first")
    path = path.resolve()  # a symbolic link stays
    parent = path.parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def card(template: str, **values: object) -> str:
    """The text of a card: a Jinja template of this directory, with values."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["quoted"] = json_text  # JSON is YAML
    return environment.get_template(template).render(values).rstrip() + "\n"
