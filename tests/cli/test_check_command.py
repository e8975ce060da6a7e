"""``steep check``: all faults at once, the plan, and what it imports, writes and accepts."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.core.gpus import GIB
from tasks.checks.collect import check_run
from tasks.checks.machine import described_machine
from tests.cli.test_cli import ROOT
from tests.tasks.checks.published_files import write_lines, write_published_files

PUBLISHED = {
    "tearag-llama3-8b": 8,
    "tearag-qwen2.5-14b": 8,
    "hiprag-qwen2.5-3b": 4,
    "hiprag-qwen2.5-7b": 4,
    "prograph-qwen2.5-3b": 4,
    "prograph-qwen2.5-7b": 4,
}
ONE_GPU = ["single-gpu-24gb", "single-gpu-24gb-hiprag", "single-gpu-24gb-prograph"]


def check(*arguments, cwd=ROOT, **variables):
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "check", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment | variables,
        check=False,
        timeout=300,
    )


def listed(folder):
    return sorted(path for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_published_files(tmp_path_factory.mktemp("data"))


def test_the_embedded_configuration_has_no_faults(tmp_path):
    done = check("--config", "embedded", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no faults" in done.stdout
    assert "sample" in done.stdout
    assert listed(tmp_path) == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_fit_their_gpus_of_80_gb(name, data):
    checked = check_run(name, (), str(data), described_machine(f"{PUBLISHED[name]}x80,1000"))
    assert checked.faults == ()
    stages = {stage.stage: stage for stage in checked.plan.stages}
    assert stages["train"].gpus == PUBLISHED[name]
    assert 0 < stages["sample"].device_bytes < checked.plan.gpu.memory
    assert all(stage.unknown == () for stage in checked.plan.stages)


@pytest.mark.parametrize("name", ONE_GPU)
def test_configurations_for_24_gb_fit_one_gpu(name, data):
    checked = check_run(name, (), str(data), described_machine("1x24,64"))
    assert checked.faults == ()
    stages = {stage.stage: stage for stage in checked.plan.stages}
    assert 12 * GIB < stages["sample"].device_bytes < 23.6 * GIB
    assert 8 * GIB < stages["train"].device_bytes < 23.6 * GIB


def test_the_plan_is_printed_as_a_table_and_as_json(data, tmp_path):
    options = ("--config", "single-gpu-24gb", "--data", data, "--machine", "1x24")
    done = check(*options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPUs of 23.6 GiB" in done.stdout
    assert "base weights" in done.stdout
    made = json.loads(check(*options, "--json", cwd=tmp_path).stdout)
    assert made["faults"] == []
    (train,) = [stage for stage in made["plan"]["stages"] if stage["stage"] == "train"]
    assert train["device_bytes"] == pytest.approx(sum(train["parts"].values()), abs=10)


def test_repeated_questions_and_answers_that_cannot_score_are_noted_and_no_fault(tmp_path):
    data = write_published_files(tmp_path / "data_files", decomposed=100)
    rows = [
        {"question": "Who is A?", "golden_answers": ["The"]},
        {"question": "Who is B?", "golden_answers": ["x"]},
        {"question": "who is b", "golden_answers": ["x", "..."]},
    ]
    write_lines(data / "popqa/test.jsonl", rows)
    options = ("--config", "single-gpu-24gb", "--data", data, "--machine", "1x24")
    options += ("--set", "data.test=[{dataset: popqa, path: popqa/test.jsonl}]")
    options += ("--set", "sft_data.sizes={2: 1}")
    done = check(*options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    notes = [line for line in done.stdout.splitlines() if line.startswith("data.")]
    place = f'{data}/popqa/test.jsonl:1: ["The"]'
    assert notes[0] == "data.test: 1 answers of articles and punctuation alone, beside others"
    assert notes[1] == (
        "data.test: 1 questions whose answers are articles and punctuation alone; every prediction "
        f"scores 0; the first: {place}"
    )
    assert "data.test: 1 questions with the text of an earlier question of the set" in notes[2]
    made = json.loads(check(*options, "--json", cwd=tmp_path).stdout)
    assert (made["faults"], made["notes"]) == ([], notes)


def test_a_malformed_record_behind_the_first_ones_is_a_fault(tmp_path):
    data = write_published_files(tmp_path / "data_files")
    rows = [{"question": f"Q{n}?", "golden_answers": ["x"]} for n in range(100)]
    write_lines(data / "popqa/test.jsonl", [*rows, {"question": "Q?"}])
    options = ("--config", "single-gpu-24gb", "--data", data, "--machine", "1x24")
    options += ("--set", "data.test=[{dataset: popqa, path: popqa/test.jsonl}]")
    done = check(*options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{data}/popqa/test.jsonl:101: " in done.stderr


def test_every_fault_is_named_on_a_line_of_its_own(tmp_path):
    data = write_published_files(tmp_path / "data_files", decomposed=10)
    (data / "nq/test.jsonl").unlink()
    write_lines(data / "popqa/test.jsonl", [{"question": "Q?"}])
    run = tmp_path / "run"
    run.mkdir()
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
    done = check("--config", "tearag-llama3-8b", "--data", data, *overrides, cwd=run)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    for words in (
        ["nq/test.jsonl", "no such file", "steep data"],
        ["popqa/test.jsonl:1"],
        ["sft_data.sizes asks for 7,357"],
        ["model.base: meta/absent-model is not in the cache"],
        ["index.embedder.max_length is 4096", "512 positions"],
        ["sampling.max_total_tokens is 9000", "engine.max_model_len is 8192"],
        ["dpo.max_length is 2048", "dpo.over_long"],
        ["dpo.batch_size is 17"],
        ["NO_SUCH_KEY, which is not set"],
        ["this machine has no GPU", "gpus is 8", "index.gpu is true"],
    ):
        assert any(all(word in line for word in words) for line in lines), (words, done.stderr)
    assert listed(run) == []


def test_invalid_settings_are_named_beside_faults_of_files(tmp_path):
    done = check(
        "--config", "tearag-llama3-8b", "--data", tmp_path, "--machine", "8x80",
        "--set", "gpus=-1", "--set", "engine.max_num_seq=3", "--set", "nonsense",
    )  # fmt: skip
    assert done.returncode == 2
    for words in (
        "gpus is -1",
        "engine.max_num_seq: unknown key",
        "--set nonsense",
        "psgs_w100.tsv",
    ):
        assert words in done.stderr


def test_settings_that_nothing_replaces_are_named_alone(tmp_path):
    done = check("--config", "tearag-llama3-8b", "--set", "sft.batch_size=x", cwd=tmp_path)
    assert done.returncode == 2
    assert "sft.batch_size is 'x'" in done.stderr
    assert "once these settings are valid" in done.stderr


def test_a_model_that_is_too_large_is_refused_with_the_settings_to_change(data, tmp_path):
    done = check(
        "--config", "tearag-llama3-8b", "--data", data, "--machine", "8x24",
        "--set", "sampling.shards=8", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    (train,) = [line for line in done.stderr.splitlines() if line.startswith("train needs")]
    assert "on a GPU of 23.6 GiB" in train
    assert "dpo.per_device_batch_size" in train
    graph = next(line for line in done.stderr.splitlines() if line.startswith("graph.engine"))
    assert "Qwen/Qwen2.5-14B-Instruct needs" in graph
    assert "graph.engine.tensor_parallel_size" in graph


def test_the_machine_is_described_by_gpus_and_memory(tmp_path):
    done = check("--machine", "eight", cwd=tmp_path)
    assert done.returncode == 2
    assert "such as 8x80" in done.stderr


def test_a_missing_data_directory_is_a_fault_among_others(tmp_path):
    done = check("--config", "musique-sample", "--data", tmp_path / "absent", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent: no such directory" in done.stderr
    assert "musique_train100.json" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = check("--set", f"runs_dir={closed}/runs", cwd=tmp_path)
    assert done.returncode == 2
    assert "runs_dir" in done.stderr


def test_checking_imports_no_heavy_package(data):
    code = (
        "import sys\n"
        "from tasks.checks.collect import check_run\n"
        "from tasks.checks.machine import described_machine, this_machine\n"
        f"there = described_machine('8x80')\n"
        f"assert not check_run('tearag-llama3-8b', (), {str(data)!r}, there).faults\n"
        "assert check_run('tearag-llama3-8b', (), None, this_machine()).faults\n"
        "heavy = {'torch', 'vllm', 'transformers', 'datasets', 'faiss', 'scipy', 'pandas', 'bitsandbytes'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_run_without_a_gpu_is_refused_before_its_first_stage(data, tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "run", "graph", "--config", "tearag-llama3-8b", "--data", data],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "this machine has no GPU" in done.stderr
    assert not list(tmp_path.rglob("manifest.json"))
