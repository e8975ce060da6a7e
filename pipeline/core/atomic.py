"""Atomic file writes: text, JSON, Parquet, NumPy arrays and the output of commands.

Every writer fills a temporary sibling of the target, flushes it to the disk and renames it at the
end, so a reader sees the old file, the new file or no file, but never a partial file, also after a
power failure. A symbolic link stays, and its target is replaced. Missing parent directories are
created. The temporary file is removed when writing fails.

An output of a command replaces a file only if that is empty or of the same kind: its first record
has the same fields, or its page the same title, or it begins with the same line. So a command may
be repeated, and no other file is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.core.errors import STDIN, InputError
from pipeline.core.records import OPTIONAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

STDOUT = "-"
WriteBlock = Callable[[Mapping[str, Sequence[Any]]], None]
_READ = 1 << 26  # bytes of a file that is there


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed to ``path`` when the block ends normally."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        sync(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Flush a directory, everything in it and its name to the disk."""
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync(path)


def place(made: Path, target: Path) -> None:
    """Rename a new directory once everything in it is on the disk.

    Its name would otherwise outlive a power failure, and the content of its files would not.
    """
    sync_all(made)
    made.replace(target)
    sync(target.parent)


@contextmanager
def text_output(path: Path | str) -> Iterator[Callable[[str], None]]:
    """A function that writes UTF-8 text, which reaches ``path`` only when the block ends normally.

    ``-`` is standard output. A regular file is replaced atomically. FIFOs, devices and other
    special files are written through, after the block, from a temporary file. Raises InputError
    when ``path`` is a directory or cannot be written, and when the file that is there is of another
    kind than the first text, which is a whole record or page.
    """
    with ExitStack() as stack:
        with _output_errors(path):
            special = str(path) == STDOUT or _is_special(Path(path))
            there = "" if special else _beginning(Path(path))
            stream = stack.enter_context(_output_stream(path, special))

        def write(text: str) -> None:
            nonlocal there
            if there and _kind(there) != _kind(text):
                raise InputError.at(
                    path,
                    "the file exists and is none that this command writes, by its first fields or "
                    "lines; name another file, or remove it",
                )  # fmt: skip
            there = ""
            with _output_errors(path):
                stream.write(text)

        yield write
        if there:
            write("")
        with _output_errors(path):
            stack.close()


def _beginning(path: Path) -> str:
    """The beginning of the file that is there; raises InputError when nobody may write it."""
    try:
        with path.open("rb") as stream:
            if not os.fstat(stream.fileno()).st_mode & 0o222:
                raise InputError.at(path, "is read-only; name another file")
            return stream.read(_READ).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _kind(text: str) -> object:
    """The fields of the first JSON object of a text, else the title of a page, else a line."""
    line, title = text.partition("\n")[0], re.search("<title>.*?</title>", text)
    for part in (line, text):
        with suppress(ValueError, RecursionError):
            value = json.loads(part)
            if isinstance(first := next(iter(value), None) if type(value) is list else value, dict):
                return frozenset(first) - OPTIONAL
    return title[0] if title else line or text


@contextmanager
def _output_errors(path: Path | str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "standard output" if str(path) == STDOUT else path
        raise InputError.at(name, f"cannot be written: {error.strerror}") from None


@contextmanager
def _output_stream(path: Path | str, special: bool) -> Iterator[IO[str]]:
    if not special:
        with (
            replacing(Path(path)) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as stream,
        ):
            yield stream
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as spool:
        yield spool
        spool.seek(0)
        with (
            nullcontext(sys.stdout)
            if str(path) == STDOUT
            else open(path, "a", encoding="utf-8", newline="")
        ) as target:
            shutil.copyfileobj(spool, target)
            target.flush()


def _is_special(path: Path) -> bool:
    """Whether ``path`` is to be written through; raises InputError when it is a directory."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise InputError.at(path, "is a directory; name a file")
    # /dev/stdout and /dev/fd/N lead to files that the shell has opened, so they must not be
    # replaced.
    return not stat.S_ISREG(mode) or path.absolute().parts[1:2] in (("dev",), ("proc",))


def check_distinct(outputs: Sequence[Path | str | None], inputs: Iterable[Path | str] = ()) -> None:
    """Raise InputError when an output of a command is also an input, or another output."""
    there = (name for name in inputs if str(name) != STDIN and os.path.exists(name))  # noqa: PTH110 - texts too
    seen = {os.path.realpath(name): "is an input too; name another file" for name in there}
    for output in outputs:
        if output is None:
            continue
        name = os.path.realpath(output) if str(output) != STDOUT else STDOUT
        if name in seen and name != os.path.realpath(os.devnull):
            raise InputError.at(output, seen[name])
        seen[name] = "is named for two outputs; name two files"


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON. Raises ValueError when a number is not finite."""
    write_text(path, json_text(value, indent=1, allow_nan=False) + "\n")


def json_text(value: Any, **layout: Any) -> str:
    """JSON with non-ASCII characters kept; ``layout`` goes to `json.dumps`.

    Text with an unpaired surrogate, which models produce and UTF-8 cannot encode, is escaped to
    ASCII.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, **layout)
    return text


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array in NumPy's ``.npy`` format."""
    # Imported here, because commands and checks that write no array start faster without it.
    import numpy as np

    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array)


@contextmanager
def parquet_writer(path: Path, schema: Any) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetWriter` with zstd compression for tables of ``schema``."""
    import pyarrow.parquet as pq

    with (
        replacing(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        yield writer


@contextmanager
def open_table(folder: Path, name: str, schema: Any, mapped: Sequence[str]) -> Iterator[WriteBlock]:
    """A function that appends a block of columns to ``<name>.parquet`` and ``<name>.arrow``.

    The Parquet file has all columns of ``schema``, compressed; the Arrow file has the columns
    ``mapped``, uncompressed for memory-mapping.
    """
    import pyarrow as pa

    with (
        parquet_writer(folder / f"{name}.parquet", schema) as packed,
        pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file,
        pa.ipc.new_file(file, pa.schema([schema.field(column) for column in mapped])) as plain,
    ):

        def write(columns: Mapping[str, Sequence[Any]]) -> None:
            table = pa.table(columns, schema=schema)
            packed.write_table(table)
            plain.write_table(table.select(list(mapped)))

        yield write
