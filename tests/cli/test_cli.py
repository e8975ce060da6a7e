"""The command line: exit statuses, messages, the two uses of a command, and imports at start-up."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import steep as in_process

ROOT = Path(__file__).resolve().parents[2]


def steep(*arguments, cwd=ROOT, stdin=""):
    """The command in this process, as `process` runs it in one of its own."""
    with contextlib.chdir(cwd):
        status, printed, complaint = in_process([*map(str, arguments)], stdin.encode())
    return subprocess.CompletedProcess(arguments, status, printed, complaint)


def process(*arguments, cwd=ROOT, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        input=stdin,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        check=False,
        timeout=300,
    )


def refused(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_wrong_key_is_refused():
    refused(
        process("run", "--set", "sampling.sampels=4"), "sampling.sampels: unknown key", "samples"
    )


def test_an_error_message_cannot_control_the_terminal(tmp_path):
    done = steep("run", "--config", tmp_path / "a\x1b]0;x\x07\u202eb.yaml")
    refused(done, "a␛]0;x␇\\u202eb.yaml: no such configuration file")
    assert not set(done.stderr) & {"\x1b", "\x07", "\u202e"}


def test_an_unknown_stage_and_a_missing_data_directory_are_refused(tmp_path):
    refused(steep("run", "smaple"), "no stage 'smaple'", "sample")
    refused(steep("run", "--data", tmp_path / "absent"), "no such directory")


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
    done = steep("run", "corpus", "--config", config, "--data", tmp_path)
    refused(done, "documents.jsonl:2", "not valid JSON")
    assert not list((tmp_path / "runs").rglob("manifest.json"))


def test_checking_what_is_done_imports_no_heavy_package(tmp_path):
    code = (
        "import sys; from pipeline.cli import app\n"
        "from tasks import task_for; from pipeline.engine.stage import walk\n"
        f"task = task_for('report', 'embedded', ('runs_dir={tmp_path}',))\n"
        "assert not all(stage.complete() for stage in walk(task))\n"
        "heavy = {'torch', 'vllm', 'transformers', 'datasets', 'faiss', 'pandas', 'scipy', 'openai',\n"
        "         'numpy', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_file_commands_read_standard_input_and_refuse_a_malformed_record(tmp_path):
    done = process("metrics", "-", stdin='{"answer": "10", "answers": ["2010"]}\n')
    assert json.loads(done.stdout) == {
        "answer": "10",
        "answers": ["2010"],
        "em": 0.0,
        "f1": 0.0,
        "cem": 0.0,
    }
    target = tmp_path / "out.jsonl"
    done = process(
        "metrics", "-", "-o", target, stdin='{"answer": "a", "answers": ["a"]}\n{"answer": 1\n'
    )
    refused(done, "<stdin>:2")
    assert not target.exists()


@pytest.mark.parametrize("name", ["embedded", "embedded.yaml", "configs/embedded.yaml"])
def test_a_shipped_configuration_is_found_by_name_from_any_directory(tmp_path, name):
    done = steep("status", "--json", "--config", name, "--why", "corpus", cwd=tmp_path)
    assert json.loads(done.stdout) == ["corpus: never completed with any settings"]


def test_a_file_of_the_user_comes_before_a_shipped_configuration(tmp_path):
    (tmp_path / "embedded.yaml").write_text("rounds: many\n")
    refused(steep("status", "--config", "embedded.yaml", cwd=tmp_path), "embedded.yaml: rounds")
    refused(steep("status", "--config", "absent", cwd=tmp_path), "absent: no such", "init --list")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "hyper-index", "--round", 2),
        ("run", "--round", 2),
        ("status", "--why", "corpus:2"),
    ],
)
def test_a_round_of_a_stage_without_rounds_is_refused(tmp_path, arguments):
    done = steep(*arguments, cwd=tmp_path)
    refused(done, "round is 2, but stage", "has no rounds; remove --round", "sample, judge, score")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pair", "-", "--round", 2), "steep pair: --round cannot be used without --from"),
        (("pair",), "steep pair: name a FILE (- is standard input) or --from RUN"),
        (("pair", "-", "--set", "seed=1"), "--set with FILE needs --config or --variant"),
        (("evaluate",), "steep evaluate: name --policy, --questions or both"),
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
def test_options_of_the_other_use_are_refused_in_one_sentence(tmp_path, arguments, message):
    done = steep(*arguments, cwd=tmp_path, stdin="")
    refused(done, message)
    assert len(done.stderr.splitlines()) == 1


def test_the_help_fits_one_screen():
    lines = steep("--help").stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
