"""``steep init own``: a configuration for a user's documents and questions.

Input: documents, questions, and the machine or endpoint that the user has. Output: lines that say
what was found, guessed and skipped; and the text of a YAML file (``own.yaml.j2``) that names a
shipped base and the settings that differ from it.
"""

from __future__ import annotations

import math
import os
import random
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import yaml

from pipeline.config.base import KEY_REMEDY, check_address, check_texts, is_public
from pipeline.config.presets import Preset, format_prompt, preset_of
from pipeline.core import gguf
from pipeline.core.errors import InputError, SteepError
from pipeline.core.model_files import PACKAGE, is_hub_name
from pipeline.core.model_shapes import CONFIG
from pipeline.core.records import Question
from pipeline.core.row_files import BadRows
from pipeline.core.shipped import TINY_READER
from pipeline.core.text import SPACELESS, one_line
from pipeline.knowledge.corpus.documents import is_read, read_documents
from pipeline.knowledge.corpus.first_records import skipped_documents
from pipeline.knowledge.corpus.folders import find_files
from pipeline.knowledge.corpus.questions.load import UNKNOWN_HOPS, Notes, dataset_of, load_questions
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.methods.advice import suited_method
from pipeline.training.sft_data.mentions import mention
from pipeline.training.sft_data.steps import parts_of

SEED = 0
_GPU = 24  # GB of the shipped configurations for one GPU
_SHARE, _BESIDE = 0.7, 4  # of their engine, and GB in it beside weights in 16 bit
_BASES = {  # on a laptop, and on one GPU
    "search-r1": ("embedded-search-r1", "single-gpu-24gb-search-r1"),
    "tearag": ("embedded", "single-gpu-24gb"),
    "hiprag": ("embedded-hiprag", "single-gpu-24gb-hiprag"),
}
_COLD = 2000  # examples of the cold start at most, of each number of hops
_READ, _RECORDS = 200, 500  # files that are read to describe the documents, and records of each


@dataclass(frozen=True)
class Wanted:
    """The options of the command; ``gpu`` are GB, or 0 on a laptop."""

    docs: Sequence[Path]
    questions: Sequence[Path] = ()
    endpoint: str | None = None
    model: str | None = None
    gpu: int = 0
    method: str | None = None
    base: str | None = None

    @property
    def preset(self) -> tuple[Preset, float, str]:
        """What `preset_of` says of ``base``, or of the tiny reader."""
        return preset_of(self.base or str(TINY_READER))

    def check(self) -> None:
        """Raise InputError when the options do not fit together."""
        if not self.docs:
            raise InputError("steep init own needs documents; name a file or a folder with --docs")
        for path in (*self.docs, *self.questions):
            _quoted(path)
        if "/" in map(os.path.realpath, self.docs):
            raise InputError.at("/", "all files of the machine; name a folder below it with --docs")
        if (self.endpoint is None) != (self.model is None):
            raise InputError("--endpoint and --model belong together; give both, or neither")
        if self.endpoint is not None:
            try:
                check_address(self.endpoint, "http://localhost:8000/v1", KEY_REMEDY)
            except ValueError as error:
                raise InputError(f"--endpoint: {error}") from None
        if 0 < self.gpu < _GPU:
            raise InputError(
                f"--gpu is {self.gpu}; the configurations for one GPU need {_GPU} GB; leave --gpu "
                "out for a laptop"
            )
        if self.base is not None:
            self._check_base(self.base)
        if self.method not in (None, *_BASES):
            raise InputError(f"--method is {self.method!r}; expected {', '.join(_BASES)}")
        if self.method == "hiprag" and not self.endpoint and not self.gpu:
            raise InputError(
                "--method hiprag needs a model that judges searches; name it with --endpoint and "
                f"--model, or use --gpu {_GPU}"
            )

    def _check_base(self, base: str) -> None:
        way = gguf.way(Path(base), base)
        if way and not (Path(base) / CONFIG).is_file():
            raise InputError(f"--base {base} has no {CONFIG}{way}")
        there = Path(base).exists() or base.startswith(PACKAGE)
        if not there and (not is_hub_name(base) or base.endswith(gguf.SUFFIX)):
            raise InputError(
                f"--base {base}: no such file or directory; name a model of the hub (owner/model), "
                "a directory, a GGUF file or package:NAME"
            )
        _, size, why = self.preset
        if 0 < self.gpu < (least := (2e-9 * size + _BESIDE) / _SHARE):
            raise InputError(
                f"--gpu is {self.gpu}, and {base} needs {least:.0f} GB, because {why}; name a "
                "smaller model"
            )


class _File(NamedTuple):
    """A file of questions; ``held_out`` of them are for the test."""

    path: Path
    dataset: str
    held_out: int


@dataclass
class _Found:
    """What the files hold: ``cold`` serve the cold start, ``rounds`` are asked in the rounds."""

    lines: list[str] = field(default_factory=list)
    capitals: bool = True  # whether capitals mark names
    cold: list[_File] = field(default_factory=list)
    hops: Counter[int] = field(default_factory=Counter)  # of the questions of the cold start
    shared: bool = False  # whether half of each file serves the cold start, half the rounds
    rounds: list[_File] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)  # of the rounds


def own_configuration(wanted: Wanted, output: Path) -> tuple[str, list[str], str]:
    """The text of the file ``output``, lines about its sources, and the commands to run next.

    Raises InputError when the options do not fit together, no document can be read, or a question
    file is malformed.
    """
    wanted.check()
    found = _Found()
    found.lines += _documents(wanted.docs, found)
    found.lines += _questions(wanted, found)
    method, why = suited_method(found.questions, judges=wanted.endpoint is not None)
    if wanted.method is not None:
        method, why = wanted.method, "--method names it"
    elif method == "tearag" and set(found.hops) == {1}:
        method, why = "search-r1", "its cold start reads the questions' passages"
    if found.rounds:
        others = " or ".join(name for name in _BASES if name != method)
        found.lines.append(f"method: {method}, because {why}; --method {others} changes it")
    else:
        found.lines.append(
            "method: none, because nothing is trained without questions; steep synthesise writes "
            "some with a language model"
        )
    if wanted.base:
        preset, _, why = wanted.preset
        found.lines.append(f"model: {wanted.base}, with preset {preset.name}: {why}")
    elif not wanted.gpu:
        found.lines.append(
            "model: the tiny reader, which cannot read real English; --base names one that can"
        )
    if found.rounds and not found.cold and not wanted.gpu:
        found.lines.append(
            "policy 0: the untrained model, which does not know the format or hardly follows it; "
            "add questions with a passage each, or decomposed ones, for a cold start, or use "
            "--gpu 24"
        )
    return _text(wanted, found, method, output), found.lines, _next_steps(wanted, found, output)


def _next_steps(wanted: Wanted, found: _Found, output: Path) -> str:
    options, asked = f"--config {shlex.quote(str(output))}", '"…"'
    if found.questions:
        asked = shlex.quote(one_line(found.questions[0].question, 200))
    untrained = " --policy base" if found.cold and not wanted.gpu else ""
    lines = [
        f"run index {options}", f"search {asked} {options}", f"ask {asked} {options}{untrained}"
    ]  # fmt: skip
    if found.questions:
        lines += [f"check {options}", f"run {options}"]
    elif wanted.endpoint and wanted.model:
        model = f"--endpoint {shlex.quote(wanted.endpoint)} --model {shlex.quote(wanted.model)}"
        lines.append(f"synthesise -o questions {options} {model}")
    return "Read it, then run:\n" + "\n".join(f"  steep {line}" for line in lines)


def _documents(paths: Sequence[Path], found: _Found) -> Iterator[str]:
    """Lines about the documents. Raises InputError if none can be read."""
    files, skipped = [], Counter[str]()
    for path in paths:
        below = find_files(Path(), str(path))
        if not below or (below[0].named and not below[0].path.exists()):
            raise InputError.at(path, "no such file or folder of documents (--docs)")
        files += [one for one in below if one.problem is None and (one.named or is_read(one.path))]
        skipped += skipped_documents(below)
    read: list[Document] = []
    problems, malformed = [], []
    some = random.Random(SEED).sample(files, min(_READ, len(files)))
    for one in sorted(some, key=lambda file: file.name):
        try:
            documents = islice(read_documents(one, bad=(bad := BadRows())), _RECORDS)
            read += [each for each in documents if each.text.strip()]
            malformed += [bad] if bad.count else []
        except SteepError as error:
            problems.append(str(error))
    if not read:
        first = f"; the first problem: {problems[0]}" if problems else ""
        raise InputError(f"--docs: no file with text among {len(files):,}{first}")
    kinds = Counter(Path(one.name).suffix.lower() for one in files).most_common()
    listed = ", ".join(f"{count:,} {kind or 'without a suffix'}" for kind, count in kinds)
    words = median(len(document.text.split()) for document in read)
    yield f"documents: {len(files):,} files ({listed}), half of them below {words:,.0f} words"
    for reason, count in skipped.items():
        yield f"documents: {count:,} skipped: {reason}"
    if problems:
        yield f"documents: {len(problems):,} of {len(some):,} unreadable: {problems[0]}"
    if malformed:
        count = sum(bad.count for bad in malformed)
        yield f"documents: {count:,} malformed rows left out, the first: {malformed[0].first}"
    text = "".join(document.text[:2000] for document in read)
    letters = [character for character in text if character.isalpha()]
    if sum(map(str.isupper, letters)) < 0.005 * len(letters):
        found.capitals = False
        yield "documents: no capitals, which mark names, so retrieval follows no links"
    if len(SPACELESS.findall(text)) > 0.1 * len(letters):
        yield "documents: a script without spaces, so passages are cut by characters"
    if sum(map(str.isascii, letters)) < 0.5 * len(letters):
        yield "documents: not in English; name a multilingual model in index.embedder.model"


def _questions(wanted: Wanted, found: _Found) -> Iterator[str]:
    """Lines about the questions. Raises InputError for a malformed file, or a single question."""
    read = []
    for path in wanted.questions:
        dataset, notes = dataset_of(path), Notes()
        questions = load_questions(path, dataset, for_training=True, notes=notes)
        hops = Counter(len(one.decomposition) for one in questions if _decomposed(one))
        yield (
            f"questions: {path}: {len(questions):,}, read as {dataset}; "
            f"{sum(bool(one.evidence) for one in questions):,} have evidence, "
            f"{sum(one.hop != 'unknown' for one in questions):,} a number of hops, "
            f"{hops.total():,} a decomposition"
        )
        for reason, count in notes.counts.items():
            if count and reason != UNKNOWN_HOPS:
                yield f"questions: {path}: {count:,} {reason}{notes.first(reason)}"
        file = _File(path, dataset, max(1, min(200, len(questions) // 5)))
        if 2 * hops.total() > len(questions):
            found.cold.append(file)
            found.hops += hops
        read.append((file, questions))
    if not found.cold and not wanted.gpu and wanted.method != "tearag":
        for file, questions in read:
            if 2 * (singles := sum(map(_has_passage, questions))) > len(questions):
                found.cold.append(file)
                found.hops[1] += singles
    apart = [one for one in read if one[0] not in found.cold]
    if found.cold and not apart and not wanted.gpu:
        found.shared = True
        yield "questions: half of them, by the seed, serve the cold start, the others the rounds"
    for file, questions in apart or read:
        if len(questions) < 2:
            raise InputError.at(file.path, "has one question; some are held out, so add more")
        found.rounds.append(file)
        found.questions += questions
        yield (
            f"questions: {file.path}: {file.held_out:,} of {len(questions):,} are held out for the "
            f"test, by seed {SEED}"
        )


def _has_passage(question: Question) -> bool:
    parts = parts_of(question)
    return len(parts) == 1 and mention(parts[0].support_text or "", parts[0].answer) is not None


def _decomposed(question: Question) -> bool:
    parts = question.decomposition
    return len(parts) > 1 and all(part.support_title and part.support_text for part in parts)


def _text(wanted: Wanted, found: _Found, method: str, output: Path) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    root = Path(os.path.commonpath([_placed(path) for path in (*wanted.docs, *wanted.questions)]))
    while not root.is_dir() or root in {_placed(path) for path in wanted.docs}:
        root = root.parent

    def path(one: Path) -> str:
        return f"path: {_quoted(os.path.relpath(_placed(one), root))}"

    def file(one: _File, use: str = "") -> str:
        part = f", limit: {one.held_out}, select: random" if use == "test" else ""
        if found.shared and use != "test":
            part = f", share: {'[0, 0.5]' if use == 'cold' else '[0.5, 1]'}"
        return f"{{dataset: {one.dataset}, {path(one.path)}{part}}}"

    part = 3 if found.shared else 1  # a half, without those that the test takes
    cold = {hops: min(_COLD, -(-count // part)) for hops, count in sorted(found.hops.items())}
    held_out = {hops: count // 10 for hops, count in cold.items()}
    train = {hops: count - held_out[hops] for hops, count in cold.items()}
    singles = sum(hops * count for hops, count in cold.items()) // 4
    preset, *_ = wanted.preset
    settings = dict(preset.on_gpu if wanted.gpu else preset.settings)
    dumped = yaml.safe_dump(settings, default_flow_style=None, sort_keys=False, width=1000)
    model = wanted.base
    if model and Path(model).exists():
        model = str(_placed(Path(model)))
    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    page.filters |= {"file": file, "document": lambda one: f"{{{path(one)}}}"}
    return page.get_template("own.yaml.j2").render(
        wanted=wanted, found=found, method=method, seed=SEED, root=root, quoted=_quoted,
        base=_BASES[method][bool(wanted.gpu)], runs=output.resolve().parent / "runs",
        name=re.sub(r"[^A-Za-z0-9._-]", "-", output.stem).strip(".-")[:100] or "own",
        learns=bool(found.cold) and not wanted.gpu, train={1: singles, **train}, test=held_out,
        model=model, preset=preset.name, settings=dumped if settings else "",
        prompt=format_prompt(method)[1] if settings and not wanted.gpu else None,
        local=urlsplit(wanted.endpoint or "").hostname in ("localhost", "127.0.0.1", "::1"),
        public=is_public(wanted.endpoint or ""),
    )  # fmt: skip


def _placed(path: Path) -> Path:
    """The absolute path; a link to a file keeps its name, whose suffix says what the file is.

    The caches of hubs and of data versioning hold links to files without suffixes.
    """
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def _quoted(value: object) -> str:
    """A text in quotes, as YAML has it. Raises InputError for one that configurations refuse."""
    text = str(value)
    try:
        check_texts(text)
    except ValueError as error:
        raise InputError.at(text, str(error)) from None
    return yaml.dump(text, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")
