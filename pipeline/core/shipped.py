"""Files that come with steep: the configurations, the tiny reader and the demonstration run.

A wheel holds them below ``pipeline/shipped/``; in a source checkout they are at the root of the
repository (`setup.py` makes the copy). Input: a relative name such as ``embedded`` or
``data/tiny_reader``. Output: its path. A file below the current directory always comes first.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (_PACKAGE / "shipped").is_dir()
ROOT = _PACKAGE / "shipped" if INSTALLED else _PACKAGE.parent
CONFIGURATIONS = ROOT / "configs"
VARIANTS = CONFIGURATIONS / "variants.yaml"  # many configurations (`pipeline.config.variants`)
TINY_READER = ROOT / "data" / "tiny_reader"
DEMONSTRATION = (
    ROOT / "data" / "demo"
)  # a finished run, without models (`benchmarks.demonstration`)


def configuration_names() -> list[str]:
    """Names of the shipped configurations, such as ``embedded`` or ``recall/musique``."""
    files = sorted(set(CONFIGURATIONS.rglob("*.yaml")) - {VARIANTS})
    top_level_first = sorted(files, key=lambda file: file.parent != CONFIGURATIONS)
    return [configuration_name(file) for file in top_level_first]


def configuration_name(file: Path) -> str:
    """The name of a shipped configuration file."""
    return file.relative_to(CONFIGURATIONS).with_suffix("").as_posix()


def find_configuration(name: Path | str) -> Path:
    """The configuration file ``name``: an existing file, else the shipped file of that name.

    Returns ``name`` as a path when neither exists.
    """
    path = Path(name)
    return path if is_file(path) else shipped_configuration(name) or path


def shipped_configuration(name: Path | str) -> Path | None:
    """The shipped configuration called ``name``, or None.

    ``embedded``, ``embedded.yaml`` and ``configs/embedded.yaml`` name the same file.
    """
    path = Path(name)
    parts = path.parts[1:] if path.parts[:1] == ("configs",) else path.parts
    if not parts or path.is_absolute() or ".." in parts:
        return None
    file = CONFIGURATIONS.joinpath(*parts)
    candidates = (file, file.with_name(f"{file.name}.yaml"))
    return next((candidate for candidate in candidates if is_file(candidate)), None)


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file; False for a name that the file system cannot have."""
    try:
        return path.is_file()
    except OSError:  # for example a name that is too long
        return False
