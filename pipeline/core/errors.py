"""The exception classes of steep.

Each is also a standard exception, so callers can catch either. The command line prints the message
as one sentence on standard error and exits with status 2. A message names the position (file, line
or key), the actual and the expected value, and the remedy, and no API key. Malformed model output
is data, not an error.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core.text import file_name, without_keys

STDIN = "-"  # as the name of a file


class SteepError(Exception):
    """Base class; ``exit_status`` is the exit status of the command line."""

    exit_status = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(without_keys(message))


class ConfigError(SteepError, ValueError):
    """A configuration file or override is invalid."""


class InputError(SteepError, ValueError):
    """An input file is missing, broken or of another shape than expected.

    Functions that are given a text or a record raise it without a place. Those that open the file
    add the place, once (`Place`). ``line`` is the line of a text, if the error knows it.
    """

    placed = False  # whether the message begins with the file

    def __init__(self, message: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.line = line

    @classmethod
    def at(cls, path: Path | str, problem: str, line: int | str | None = None) -> InputError:
        """An error ``file:line: problem``, or ``file: record 17: problem``.

        ``line`` counts from 1, is text where a file has no lines, and None for whole files.
        """
        where = "" if line is None else f":{line}" if isinstance(line, int) else f": {line}"
        error = cls(f"{'<stdin>' if str(path) == STDIN else file_name(path)}{where}: {problem}")
        error.placed = True
        return error


class Place:
    """Where a block reads: a file, and the ``line`` that the block has reached.

    An InputError that leaves the block without a place gets this one::

        with Place(path) as place:
            for place.line, record in iterate_input(path, Trajectory):
                ...  # may raise InputError("answer: missing")

    ``line`` is as in `InputError.at`; a line that the error knows itself goes first.
    """

    def __init__(self, path: Path | str, line: int | str | None = None) -> None:
        self.path, self.line = path, line

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, InputError) and not error.placed:
            raise self.error(error) from None
        if isinstance(error, RecursionError):
            raise self.error(InputError("nested too deeply")) from None

    def error(self, error: InputError) -> InputError:
        """The error with this place, unless it has a place."""
        if error.placed:
            return error
        return InputError.at(self.path, str(error), error.line or self.line)


def check_name(name: object) -> None:
    """Raise InputError when a name or an argument has bytes that are not UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        problem = "not UTF-8, which configurations and reports need; rename the file or folder"
        raise InputError.at(str(name), problem) from None


class DependencyError(SteepError, ImportError):
    """A package, model or device of the configuration is missing."""


# The packages of the extras of pyproject.toml. steep is in no package index, where another project
# may have its name, so `pip install 'steep[serve]'` is no remedy.
EXTRAS = {
    "browse": "'duckdb>=1.4' fastapi uvicorn",
    "documents": "'pypdf>=5'",
    "ray": "'ray>=2.50'",
    "serve": "fastapi httpx 'mcp>=2' tenacity uvicorn",
    "slurm": "'submitit>=1.5'",
}


def missing(what: str, extra: str) -> DependencyError:
    """The error that ``what`` needs the packages of an extra, with the command that adds them."""
    return DependencyError(f"{what}; pip install {EXTRAS[extra]}")


class EngineError(SteepError, RuntimeError):
    """A language-model engine failed to start or failed while generating."""


class RetrievalError(SteepError, RuntimeError):
    """Retrieval failed after retries; the trajectory stops with "retrieval_error"."""


class RetrievalUnavailable(RetrievalError):
    """The retrieval service answers no query: the stage stops, not its trajectories."""


class JudgeError(SteepError, RuntimeError):
    """Too many steps have no verdict."""


class TrainingError(SteepError, RuntimeError):
    """Training cannot continue: no data, sequences too long, or a diverging policy."""


def model_problem(error: BaseException | str) -> str:
    """Why a library could not read a model's files, on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text:
        return "it needs its custom code, which is never run; name a model that transformers has"
    return text[:300]


class StoreError(SteepError, RuntimeError):
    """A stage directory, index or cache is missing, broken or inconsistent."""
