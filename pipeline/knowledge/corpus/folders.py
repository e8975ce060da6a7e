"""Find the files of a corpus: a named file, a directory with everything below it, or a glob.

Input: the directory of the data and a name in it. Output: files in the order of their names. Hidden
files are left out, and symbolic links below a directory or a glob are not followed. A file may have
any name: `core.text.file_name` makes it text.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from pipeline.core.errors import InputError
from pipeline.core.text import file_name


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a corpus; ``problem`` says why it cannot be read, if that is known already."""

    name: str  # relative to the directory of the data, or absolute as it was named; see `file_name`
    path: Path
    named: bool  # whether the configuration names this file, and not only its directory or a glob
    problem: str | None = None


def find_files(root: Path, name: str) -> list[FoundFile]:
    """The files that ``name`` stands for, sorted by name.

    A named file is returned whether it exists or not. A directory or a glob may have no file.
    Raises InputError for a glob whose ``**`` is only a part of a name, as in ``docs/**.md``.
    """
    path = root / name
    if path.is_dir():
        below = _below(path)
    elif path.exists() or not glob.has_magic(name):
        return [FoundFile(name, path, named=True)]
    else:
        parts = PurePath(name).parts
        if any("**" in part and part != "**" for part in parts):
            raise InputError.at(path, "** stands for folders alone; write **/* for files below")
        plain = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        name = str(PurePath(*parts[:plain]))
        path = root / name
        below = path.glob(str(PurePath(*parts[plain:])))
    found = []
    for file in below:
        inside = file.relative_to(path)
        if not any(part.startswith(".") for part in inside.parts):
            try:
                problem = _problem(path, inside)
                folder = problem is None and file.is_dir()
            except OSError as error:  # removed since, or a path that is too long
                problem, folder = f"cannot be read: {error.strerror}", False
            if not folder:
                found.append(FoundFile(file_name(PurePath(name) / inside), file, False, problem))
    return sorted(found, key=lambda one: one.name)


def _below(folder: Path) -> Iterator[Path]:
    """The files, links and unreadable directories below a directory."""
    folders = [folder]
    for parent in folders:  # os.walk of Python 3.11 alone recurses, and fails in deep directories
        _, inside, files = next(os.walk(parent), ("", [], []))
        paths = {parent / name for name in inside if not name.startswith(".")}
        entered = {path for path in paths if not path.is_symlink() and _is_open(path)}
        folders += entered
        yield from (*(paths - entered), *(parent / name for name in files))


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _problem(folder: Path, inside: PurePath) -> str | None:
    for step in (inside, *inside.parents[:-1]):
        if (folder / step).is_symlink():
            return "a symbolic link, which is not followed"
    mode = (folder / inside).stat().st_mode
    if stat.S_ISDIR(mode):
        return None if _is_open(folder / inside) else "an unreadable directory"
    if not stat.S_ISREG(mode):
        return "not a regular file"
    return None if os.access(folder / inside, os.R_OK) else "an unreadable file"
