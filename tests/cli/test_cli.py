"""The command line: exit statuses, messages, and the two uses of a command."""

import json
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import accepted, refused, steep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_error_message_cannot_control_the_terminal(tmp_path):
    told = refused("run", "--config", tmp_path / "a\x1b]0;x\x07\u202eb.yaml")
    assert "a␛]0;x␇\\u202eb.yaml: no such configuration file" in told
    assert not set(told) & {"\x1b", "\x07", "\u202e"}


def test_an_unknown_stage_and_a_missing_data_directory_are_refused(tmp_path):
    told = refused("run", "smaple")
    assert "no stage 'smaple'" in told
    assert "sample," in told
    assert "no such directory" in refused("run", "--data", tmp_path / "absent")


def test_a_strict_corpus_stops_at_a_malformed_line_with_file_and_line(tmp_path):
    (tmp_path / "documents.jsonl").write_text('{"title": "A", "text": "B"}\n{"title": "C", "te\n')
    (tmp_path / "questions.jsonl").write_text('{"question": "Q?", "answer": ["a"]}\n')
    (tmp_path / "triples.json").write_text("{}")
    config = tmp_path / "own.yaml"
    config.write_text(
        f"base: {ROOT}/configs/embedded.yaml\n"
        f"runs_dir: {tmp_path}/runs\n"
        "data: {closed_world: null, sft: [], validation: [], test: [],\n"
        "       sampling: [{dataset: nq, path: questions.jsonl}]}\n"
        "corpus: {files: [{path: documents.jsonl, format: jsonl}], strict: true}\n"
        "graph: {source: openie, path: triples.json}\n"
    )
    status, _, told = steep(["run", "corpus", "--config", str(config), "--data", str(tmp_path)])
    assert status == 2
    assert "documents.jsonl:2: not valid JSON" in told
    assert not list((tmp_path / "runs").rglob("manifest.json"))


def test_file_commands_read_standard_input_and_refuse_a_malformed_record(tmp_path):
    paris, none = {"answer": "in Paris, France", "answers": ["Paris"]}, {"answers": ["2010"]}
    printed = accepted("metrics", "-", stdin="\n".join(map(json.dumps, (paris, none))).encode())
    assert [json.loads(line) for line in printed.splitlines()] == [
        {**paris, "em": 0.0, "f1": 0.5, "cem": 1.0},
        {**none, "em": 0.0, "f1": 0.0, "cem": 0.0},
    ]
    target = tmp_path / "out.jsonl"
    cut = b'{"answer": "a", "answers": ["a"]}\n{"answer": 1\n'
    assert "<stdin>:2" in refused("metrics", "-", "-o", target, stdin=cut)
    assert not target.exists()


@pytest.mark.parametrize("name", ["embedded", "embedded.yaml", "configs/embedded.yaml"])
def test_a_shipped_configuration_is_found_by_name_from_any_directory(folder, name):
    why = accepted("status", "--json", "--config", name, "--why", "corpus")
    assert json.loads(why) == ["corpus: never completed with any settings"]


def test_a_file_of_the_user_comes_before_a_shipped_configuration(folder):
    (folder / "embedded.yaml").write_text("base: tearag-llama3-8b.yaml\nrounds: many\n")
    assert "embedded.yaml: rounds" in refused("status", "--config", "embedded.yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "hyper-index", "--round", 2),
        ("run", "--round", 2),
        ("status", "--why", "corpus:2"),
    ],
)
def test_a_round_of_a_stage_without_rounds_is_refused(folder, arguments):
    told = refused(*arguments)
    for part in ("round is 2, but stage", "has no rounds; remove --round", "sample, judge, score"):
        assert part in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pair", "-", "--round", 2), "steep pair: --round cannot be used without --from"),
        (("pair",), "steep pair: name a FILE (- is standard input) or --from RUN"),
        (("pair", "-", "--set", "seed=1"), "--set with FILE needs --config or --variant"),
        (
            ("status", "--variant", "hiprag-lamda-0.2"),
            "no variant 'hiprag-lamda-0.2'; did you mean hiprag-lambda-0.2, ",
        ),
        (("status", "--variant", "zero-shot", "-c", "embedded"), "leave out --config embedded"),
        (
            ("calibrate", "a.jsonl", "--truth", "b.jsonl", "--round", 1),
            "steep calibrate: --round cannot be used with FILE",
        ),
    ],
)
def test_options_of_the_other_use_are_refused_in_one_sentence(folder, arguments, message):
    assert message in refused(*arguments)


def test_the_help_fits_one_screen():
    lines = accepted("--help").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
