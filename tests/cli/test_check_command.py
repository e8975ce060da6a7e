"""``steep check``: all faults at once, the plan, and what it imports, writes and accepts."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.config import load as load_configuration
from pipeline.core.shipped import configuration_names
from pipeline.engine.check.collect import check_run
from pipeline.engine.check.devices import described_machine
from pipeline.engine.plan.plan import summary
from tests.cli.malformed_inputs import accepted, refused, steep
from tests.cli.test_cli import ROOT
from tests.tasks.checks.published_files import write_lines, write_published_files

PUBLISHED = [
    *("tearag-qwen3-8b-tools", "tearag-qwen3-4b-tools-1-gpu", "single-gpu-24gb-hiprag"),
    *(n for n in configuration_names() if n.startswith(("tearag-", "hiprag-", "prograph-"))),
]

ONE_GPU = ("check", "--config", "single-gpu-24gb", "--machine", "1x24")
SIZES = "sft_data.sizes={2: 15, 3: 15, 4: 15}"  # of questions with as many hops


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory, in which no check writes."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    yield tmp_path
    assert not list((tmp_path / "run").iterdir())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_published_files(tmp_path_factory.mktemp("data"), decomposed=20)


def test_the_embedded_configuration_has_no_faults(folder):
    printed = accepted("check", "--config", "embedded")
    assert printed.startswith("no faults\n")
    assert "sample" in printed


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_fits_its_gpus_of_80_gb(data, name):
    gpus = load_configuration(name).gpus
    checked = check_run(name, (SIZES,), str(data), described_machine(f"{gpus}x80"))
    assert checked.faults == ()
    stages = {stage.stage: stage for stage in checked.plan.stages}
    assert stages["train"].gpus == gpus
    assert 0 < stages["sample"].memory.size < checked.plan.gpu.memory
    assert checked.plan.unknown == []
    assert not [line for line in summary(checked.plan, ()) if "it would stop there" in line]


TESTED = "data.test=[{dataset: popqa, path: popqa/test.jsonl}]"


def test_answers_that_cannot_score_are_noted_and_no_fault(folder):
    data = write_published_files(folder / "data_files", decomposed=100)
    write_lines(data / "popqa/test.jsonl", [{"question": "Who is A?", "golden_answers": ["The"]}])
    options = (*ONE_GPU, "--data", data, "--set", TESTED, "--set", "sft_data.sizes={2: 1}")
    notes = [line for line in accepted(*options).splitlines() if line.startswith("data.")]
    assert notes[0] == (
        "data.test: 1 questions whose answers are articles and punctuation alone; every prediction "
        f'scores 0; the first: {data}/popqa/test.jsonl:1: ["The"]'
    )
    assert notes[-1].endswith("gold passages or answers the corpus lacks: 0 of 1 popqa (0.0%)")
    made = json.loads(accepted(*options, "--json"))
    assert (made["faults"], made["notes"]) == ([], notes)


def test_a_malformed_record_behind_the_first_ones_is_counted_and_named(folder):
    data = write_published_files(folder / "data_files", decomposed=20)
    rows = [{"question": f"Q{n}?", "golden_answers": ["x"]} for n in range(100)]
    write_lines(data / "popqa/test.jsonl", [*rows, {"question": "Q?"}])
    printed = accepted(*ONE_GPU, "--data", data, "--set", TESTED, "--set", SIZES)
    left_out = "data.test: 1 malformed rows, which are left out; the first: "
    assert f"{left_out}{data}/popqa/test.jsonl:101: expected an answer" in printed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sampling.recorded=/absent.parquet", "/absent.parquet: no such file, and sample-1 reads"),
        (
            "sft_data.rejection_sampling={teacher: /absent.jsonl}",
            "/absent.jsonl: no such file, and",
        ),
        (
            "data.test=[{dataset: nq, path: nq_tset.jsonl}]",
            "nq_tset.jsonl: the closed world has no",
        ),
        ("data.closed_world.nq_dev=0", "nq_dev.jsonl: the closed world has no such file; it has c"),
        ("corpus.files=[{path: ./corpus.txt}]", "./corpus.txt: the closed world has no such file"),
        ("graph.path=triples.jsonl", "triples.jsonl: the closed world has no such file"),
    ],
)
def test_a_file_that_a_stage_would_not_find_is_a_fault(folder, setting, words):
    assert refused("check", "--set", setting).startswith(words)


def test_every_fault_is_named_on_a_line_of_its_own(folder):
    data = write_published_files(folder / "data_files", decomposed=10)
    (data / "nq/test.jsonl").unlink()
    write_lines(data / "popqa/test.jsonl", [{"question": "Q?"}])
    settings = [
        "graph.endpoint={base_url: http://x/v1, model: m, api_key_env: NO_SUCH_KEY}",
        "graph.model=null",
        "model.base=meta/absent-model",
        "index.embedder.max_length=4096",
        "dpo.batch_size=17",
        "dpo.max_length=2048",
        "sampling.max_total_tokens=9000",
        "trackers=[mlflow]",
        "engine.gpu_memory_utilization=0.1",
    ]
    overrides = [part for setting in settings for part in ("--set", setting)]
    command = ["check", "--config", "tearag-llama3-8b", "--data", str(data), *overrides]
    status, printed, complaint = steep(command)
    assert (status, printed) == (2, "")
    lines = complaint.splitlines()
    for words in (
        ["nq/test.jsonl", "no such file", "steep data --data DIR"],
        ["popqa/test.jsonl:1"],
        ["model.base: meta/absent-model is not in the cache"],
        ["index.embedder.max_length is 4096", "512 positions"],
        ["sampling.max_total_tokens is 9000", "engine.max_model_len is 8192"],
        ["dpo.max_length is 2048", "dpo.over_long"],
        ["dpo.batch_size is 17"],
        ["NO_SUCH_KEY, which is not set"],
        ["this machine has no GPU", "gpus is 8", "index.gpu is true"],
    ):
        assert any(all(word in line for word in words) for line in lines), (words, complaint)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_fault(folder):
    closed = folder / "closed"
    closed.mkdir(mode=0o500)
    assert "runs_dir" in refused("check", "--set", f"runs_dir={closed}/runs")


IMPORTS = f"""
import sys
from pipeline.cli import app
from pipeline.engine.check.collect import check_run
from pipeline.engine.check.devices import described_machine, this_machine
from pipeline.engine.stage import walk
from tasks import task_for

heavy = {{"torch", "vllm", "transformers", "datasets", "faiss", "scipy", "pandas", "bitsandbytes", "openai"}}
data, runs = sys.argv[1:]
assert not all(stage.complete() for stage in walk(task_for("report", "embedded", (f"runs_dir={{runs}}",))))
print(sorted((heavy | {{"numpy", "pyarrow"}}) & set(sys.modules)))
assert not check_run("tearag-llama3-8b", ({SIZES!r},), data, described_machine("8x80")).faults
assert check_run("tearag-llama3-8b", (), None, this_machine()).faults
print(sorted(heavy & set(sys.modules)))
"""


def test_looking_at_what_is_done_and_checking_a_run_import_no_heavy_package(data, tmp_path):
    """What is done is known without numpy and pyarrow too."""
    command = [sys.executable, "-c", IMPORTS, str(data), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr
