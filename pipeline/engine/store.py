"""The stage store: where a stage's output is kept, when it is complete, and why it would rerun.

``runs/<run>/store/<stage>/<fingerprint>/`` is complete if and only if it holds a ``manifest.json``,
which is written last, before one rename. The fingerprint is a hash of the stage's version, the
slice of the configuration that it declares, the content of the raw files and models it reads, and
the fingerprints of its inputs. It covers no paths, times or package versions. The manifest records
the size and the hash of every file, and `problems` compares them. A
process that writes, discards or removes output or checkpoints of a stage holds the stage's lock.

A content key covers the hashes of a stage's input files in place of the fingerprints of its inputs,
so it is known once the inputs are complete. Outputs with one content key are the same: a stage need
not run when its inputs were made again with the same bytes (a constructive trace, "Build Systems à
la Carte", Mokhov, Mitchell and Peyton Jones, 2018).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from pipeline.core.atomic import json_text, sync, write_text
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import differing, parse_json, read_json, read_text
from pipeline.core.model_files import sha256
from pipeline.engine.card import CARD, write_card
from pipeline.engine.failures import explain_os_error
from pipeline.engine.progress import read_progress

MANIFEST = "manifest.json"
SHARD = "shard-"  # of the names of inputs that are shards of the stage
_DISCARDED = "manifest.discarded.json"
_LAST = ("evaluate", "report")
_THREADS = 4  # that hash files; hashlib releases the interpreter's lock


class StageBusy(StoreError):
    """Another process is running the stage."""


@dataclass(frozen=True)
class StageKey:
    """Everything that a stage's output depends on; the fingerprint is its hash.

    ``settings`` are JSON values by dotted name, ``files`` content hashes of raw files and models by
    name, and ``inputs`` the fingerprints of upstream stages by name.
    """

    stage: str
    version: int
    settings: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    round: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the key as canonical JSON."""
        return _digest(self.values())[:16]

    def values(self) -> dict[str, Any]:
        """The fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Store:
    """One run's stage directories."""

    root: Path

    def directory(self, key: StageKey) -> Path:
        """The directory of a stage's output, complete or not."""
        return self.root / key.stage / key.fingerprint

    def checkpoint_dir(self, key: StageKey) -> Path:
        """The directory of a stage's checkpoints, which is removed when the stage is complete."""
        return self.root / key.stage / f"{key.fingerprint}.partial"

    def progress_file(self, key: StageKey) -> Path:
        """The file with the progress of a running stage (`pipeline.engine.progress`)."""
        return self.root / key.stage / f"{key.fingerprint}.progress.json"

    def failure_file(self, key: StageKey) -> Path:
        """The file that says how the last attempt of a stage failed."""
        return self.root / key.stage / f"{key.fingerprint}.failed.json"

    def in_use(self, key: StageKey) -> bool:
        """Whether a process holds the stage's lock.

        The process runs on this machine, or on another one if the file system supports locks across
        machines (``docs/executors.md``). The test takes a shared lock for an instant. A process
        that starts the stage then tries again within its ``timeout``.
        """
        try:
            with (self.root / key.stage / f"{key.fingerprint}.lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no such file, or a file system without locks
            return False
        return False

    def complete(self, key: StageKey) -> bool:
        """Whether the stage's output is complete. Raises StoreError when the disk fails."""
        path = self.directory(key) / MANIFEST
        try:
            return path.exists()
        except OSError as error:
            raise StoreError(explain_os_error(error, path)) from None

    @contextmanager
    def locked(self, stage: str, fingerprint: str, timeout: float) -> Iterator[None]:
        """Hold the lock of one stage, waiting ``timeout`` seconds for another process.

        Raises StageBusy when another process still holds it then.
        """
        from filelock import FileLock, Timeout

        folder = self.root / stage
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{fingerprint}.lock")
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            record = read_progress(folder / f"{fingerprint}.progress.json")
            holder = "it" if record is None else record.holder
            raise StageBusy(
                f"another process is running this stage ({holder} holds {lock.lock_file}); wait "
                "for it, or end it"
            ) from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def used(self, *, alone: bool = False) -> Iterator[bool]:
        """Hold the lock of the whole store: runs share it, and a removal needs it ``alone``.

        Yields whether it was taken. A removal does not wait for runs; a run waits for a removal.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("ab")
        except OSError:  # of another user, or read-only: nothing can be removed there
            yield not alone
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            except OSError:  # taken, or a file system without locks
                yield not alone
            else:
                yield True

    def newest(self, stage: str) -> list[tuple[Path, dict[str, Any]]]:
        """Completed outputs of a stage with their manifests, newest first; no damaged ones."""
        found = ((path, manifest_of(path)) for path in outputs_of(self.root, stage))
        return [(path, manifest) for path, manifest in found if manifest]

    def commit(self, key: StageKey, written: Path, facts: Mapping[str, Any]) -> Path:
        """Complete a stage: write its card and manifest with its files, then rename the directory.

        Everything is on the disk before the rename. The caller holds the stage's lock. Raises
        StoreError when the stage wrote no files or counted no rows.
        """
        if not facts.get("counts") or not any(written.iterdir()):
            raise StoreError(f"stage {key.stage} wrote nothing; nothing was recorded as done")
        manifest = {"fingerprint": key.fingerprint, "key": key.values(), **facts}
        write_card(written, manifest)
        manifest["files"] = _seal(written)
        text = json_text(manifest, indent=2, sort_keys=True, allow_nan=False)
        write_text(written / MANIFEST, text + "\n")
        final = self.directory(key)
        leftovers = [self.checkpoint_dir(key)]
        if final.is_symlink():  # of a user who moved the output, perhaps to nothing by now
            final.unlink()
        elif final.exists():  # incomplete, or discarded
            leftovers.append(set_aside(final))
        written.replace(final)
        sync(final.parent)
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)  # else `steep gc --incomplete` does
        for record in (self.progress_file(key), self.failure_file(key)):
            with suppress(OSError):
                record.unlink(missing_ok=True)
        return final

    def discard(self, key: StageKey) -> None:
        """Make a stage incomplete, and delete its checkpoints; the caller holds the stage's lock.

        The output's files stay until new output takes their place, because another process may be
        reading them.
        """
        checkpoint_dir = self.checkpoint_dir(key)
        if checkpoint_dir.exists():  # first: a kill here leaves the output as it was
            shutil.rmtree(checkpoint_dir)
        final = self.directory(key)
        if (final / MANIFEST).exists():
            (final / MANIFEST).replace(final / _DISCARDED)
            sync(final)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Key(_Strict):
    stage: str
    version: int
    settings: dict[str, Any]
    files: dict[str, str]
    inputs: dict[str, str]
    round: int | None


def _inside(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError("the file is not below the output")
    return name


class _File(_Strict):
    size: int
    sha256: str


class _Manifest(_Strict):
    """The values of a manifest that are read somewhere, and their types."""

    fingerprint: str
    key: _Key
    counts: dict[str, float]
    files: dict[Annotated[str, AfterValidator(_inside)], _File]
    content_key: str | None = None
    contents: dict[str, str] | None = None
    made_from: dict[str, str] = {}
    notes: dict[str, Any] = {}
    execution: dict[str, Any] = {}
    resumed: bool = False
    seed: int = 0
    started: str = ""
    wall_seconds: float = 0.0
    launch_seconds: float = 0.0
    peak_memory_mb: float = 0.0
    device: str = ""
    versions: dict[str, str] = {}
    shards: dict[str, dict[str, float | None]] = {}
    git: str | None = None


def fork(source: Path, target: Path) -> int:
    """Link the complete outputs of the run in ``source`` into a new run, and return their number.

    The last stages, which cost seconds, are left out: the new run has results of its own once it
    has run. Outputs are never changed in place, so both runs may link them. A kill leaves at most a
    hidden directory beside ``target``, which does not exist before. Raises StoreError when a file
    cannot be linked.
    """
    with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as made:
        store, count = Path(made) / "run" / "store", 0
        store.mkdir(parents=True)
        with Store(source / "store").used():
            for output in outputs_of(source / "store"):
                stage = output.parent.name
                if stage not in _LAST:
                    copy = store / stage / output.name
                    try:
                        shutil.copytree(output, copy, copy_function=os.link)
                    except shutil.Error as error:  # of all its files
                        raise StoreError(
                            f"{output} cannot be linked: {error.args[0][0][-1]}; both runs must be "
                            "on one file system, and it must have hard links"
                        ) from None
                    count += 1
        for kept in source.glob("dtypes.json"):  # later stages compute as those before them
            shutil.copy(kept, store.parent)
        store.parent.rename(target)
    return count


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a completed stage directory. Raises StoreError when it cannot be read.

    Every value has the type that `_Manifest` says.
    """
    path = directory / MANIFEST
    if not path.exists():
        raise StoreError(f"{directory} has no {MANIFEST}, so that stage is not complete")
    try:
        manifest: dict[str, Any] = read_json(path)
        _Manifest.model_validate(manifest)
    except InputError as error:
        problem = str(error).removeprefix(f"{path}:").strip()
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        return manifest
    raise StoreError(
        f"{path}: not a manifest ({problem}); delete {directory} and run the stage again"
    )


def read_output(path: Path) -> Any:
    """Read a JSON file of a completed stage. Raises StoreError when it is missing or broken."""
    if not path.exists():
        raise StoreError(f"{path} is missing; rerun its stage with --force")
    try:
        return parse_json(read_text(path), path)
    except InputError as error:
        raise StoreError(f"{error}; rerun its stage with --force") from None


def differences(current: StageKey, manifest: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """How ``current`` differs from the key in ``manifest``.

    Returns a line for the version, and for each setting and file, and the names of the inputs.
    """
    old, lines = manifest["key"], []
    if old["version"] != current.version:
        lines.append(f"stage version: {old['version']} -> {current.version}")
    for name, before, after in differing(old["settings"], current.settings):
        lines.append(f"setting {name}: {before!r} -> {after!r}")
    for name, before, after in differing(old["files"], current.files):
        lines.append(f"file {name}: {before or 'absent'} -> {after or 'absent'}")
    return lines, [name for name, *_ in differing(old["inputs"], current.inputs)]


def _seal(directory: Path) -> dict[str, dict[str, Any]]:
    """Flush all files below ``directory`` to the disk; returns size and SHA-256 by name."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())

    def sealed(path: Path) -> dict[str, Any]:
        sync(path)
        return {"size": path.stat().st_size, "sha256": sha256(path)}

    with ThreadPoolExecutor(_THREADS) as pool:
        files = list(pool.map(sealed, paths))
    for folder in sorted({path.parent for path in paths} | {directory}):
        sync(folder)
    names = [path.relative_to(directory).as_posix() for path in paths]
    return dict(zip(names, files, strict=True))


def problems(directory: Path, *, contents: bool = False) -> list[str]:
    """One line for every problem of a completed output; empty when none was found.

    Sizes are compared, and with ``contents`` also the hashes of everything (about 1 GB/s for each
    core), as before a training and for `steep verify`.
    """
    try:
        manifest = read_manifest(directory)
    except StoreError as error:
        return [f"{MANIFEST} is damaged: {error}"]
    files, found = manifest["files"], []
    try:
        for name, file in files.items():
            path = directory / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif (size := path.stat().st_size) != file["size"]:
                found.append(f"{name} has {size:,} bytes instead of {file['size']:,}")
        if contents and not found:
            with ThreadPoolExecutor(_THREADS) as pool:
                hashes = pool.map(sha256, (directory / name for name in files))
            found += [
                f"{name} has other content (SHA-256 {now[:16]} instead of {file['sha256'][:16]})"
                for (name, file), now in zip(files.items(), hashes, strict=True)
                if now != file["sha256"]
            ]
    except OSError as error:
        found = [f"{error.filename} cannot be read: {error.strerror}"]
    if manifest["fingerprint"] != directory.name:
        found.append(f"{MANIFEST} belongs to the output {manifest['fingerprint']}")
    return found


# What a stage writes about its work: no other stage's result depends on it.
ASIDES = frozenset({CARD, "timing.json"})
MADE_FROM = ".content-key"  # beside checkpoints: the content key of the stage that wrote them


def output_content(manifest: Mapping[str, Any], patterns: Iterable[str] = ("*",)) -> str | None:
    """A hash of the names and contents of an output's files that match ``patterns``.

    Files in `ASIDES` never count. A ``*`` in a pattern also matches slashes. None when a
    pattern matches no file.
    """
    files = manifest["files"]
    names = {name for name in files if PurePosixPath(name).name not in ASIDES}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            return None
        chosen |= found
    return _digest([[name, files[name]["sha256"]] for name in sorted(chosen)])


def content_key(key: StageKey, inputs: Mapping[str, str]) -> str:
    """The content key of a stage, given the content of each of its inputs (`output_content`)."""
    return _digest({**key.values(), "inputs": dict(inputs)})


def holds_checkpoints(directory: Path) -> bool:
    """Whether a stage's directory of checkpoints holds any."""
    return directory.is_dir() and any(path.name != MADE_FROM for path in directory.iterdir())


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sound_manifest(directory: Path) -> dict[str, Any]:
    """`read_manifest` of an output. It is read again only when its file has changed."""
    facts = (directory / MANIFEST).stat()
    return _manifest(directory, facts.st_mtime_ns, facts.st_ino)


def manifest_of(directory: Path) -> dict[str, Any] | None:
    """The `sound_manifest` of an output; None when there is none, or it is damaged."""
    try:
        return sound_manifest(directory)
    except (OSError, StoreError):
        return None


@lru_cache(maxsize=4096)
def _manifest(directory: Path, written: int, inode: int) -> dict[str, Any]:
    return read_manifest(directory)


def outputs_of(root: Path, stage: str = "*") -> list[Path]:
    """The complete outputs in the store ``root``, damaged ones included, newest first.

    A directory with the manifest of another output is none: a user has copied it, or the process
    that was removing it was killed. The start of the stage counts before the time of the file,
    which a copy of the run changes.
    """
    dated = []
    for file in root.glob(f"{stage}/*/{MANIFEST}"):
        manifest = manifest_of(file.parent)
        if manifest is None or manifest["fingerprint"] == file.parent.name:
            with suppress(FileNotFoundError):  # removed in the meantime
                started = (manifest or {}).get("started", "")
                dated.append((started, file.stat().st_mtime_ns, file.parent))
    return [path for *_, path in sorted(dated, reverse=True)]


def set_aside(path: Path) -> Path:
    """Rename an output before it is removed, so that a kill leaves none that looks complete."""
    aside = path.with_name(f"{path.name.partition('.')[0]}.discarded-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)  # of a killed process with this id, as in containers
    path.replace(aside)
    sync(path.parent)
    return aside


def newest_outputs(
    root: Path,
    first: Iterable[Path] = (),
    read: Callable[[Path], dict[str, Any] | None] = manifest_of,
) -> dict[str, Path]:
    """The complete outputs in the store ``root`` of a run by label, such as ``pair-2``.

    If a stage has several, that output is taken which the outputs ``first`` were made from, else
    which the newest stage after it used. Shards are left out, and outputs without a manifest.
    ``read`` gives the manifest of a directory: of a damaged one, the default gives None and
    `sound_manifest` raises StoreError.
    """
    newest_first = [path for path in outputs_of(root) if not path.parent.name.endswith("-shard")]
    by_fingerprint = {path.name: path for path in newest_first}
    outputs: dict[str, Path] = {}

    def take(path: Path) -> None:
        manifest = read(path)
        if manifest is None:
            return
        key = manifest["key"]
        label = key["stage"] if key["round"] is None else f"{key['stage']}-{key['round']}"
        if label in outputs:
            return
        outputs[label] = path
        for fingerprint in manifest.get("made_from", key["inputs"]).values():
            if fingerprint in by_fingerprint:  # the closed world is not in the run's directory
                take(by_fingerprint[fingerprint])

    for path in (*first, *newest_first):
        take(path)
    return outputs
