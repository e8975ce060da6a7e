"""The command line: exit statuses, messages, and the two uses of a command."""

import json
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import accepted, refused

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
