"""Kills, lost nodes and damage of real runs, the tutorial, and a check of the comparison of runs."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import shipped
from pipeline.engine import status
from tasks import task_for
from tests.llm.fake_endpoint import FakeEndpoint
from tests.ray_nodes import ray_nodes
from tests.torture.nodes import finish_with_losses
from tests.torture.runs import (
    PROGRAPH,
    RunFolder,
    differing_files,
    environment,
    kill_during,
    load_outputs,
)
from tests.waiting import LIMIT, ending, wait_until

# One round over few questions. The tutorial has another seed.
TINY = (
    "rounds=1",
    "seed=1",
    "data.closed_world.seed=1",
    "data.closed_world.documents=200",
    "data.closed_world.musique_train=250",
    "data.sampling=[{dataset: nq, path: nq_sampling.jsonl}]",
    "data.test=[{dataset: nq, path: nq_test.jsonl}]",
    "sft_data.sizes={1: 160}",
    "sft_data.test_sizes={1: 8}",
)


# For the quick tests: importing vLLM costs more than all of their sampling.
QUICK = (
    *TINY,
    "data.closed_world.nq_sampling=6",
    "engine.kind=transformers",
    "sft.processes=1",
    "sampling.batch=1",
    "sampling.in_flight=4",
)


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that ended after the pairs of its only round."""
    goal = ("pair", "--round", "1")
    run = RunFolder(tmp_path_factory.mktemp("torture") / "reference", QUICK, goal=goal).prepare()
    run.finish()
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with vLLM, up to the training: tests compare each reference with all its outputs."""
    goal = ("train", "--round", "1")
    run = RunFolder(tmp_path_factory.mktemp("torture") / "trained", TINY, goal=goal).prepare()
    run.finish()
    return run


@pytest.fixture(scope="module")
def reported(trained: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A copy of that run, up to its report."""
    copy = trained.without((), tmp_path_factory.mktemp("torture") / "reported")
    whole = replace(copy, goal=("report",))
    whole.finish()
    return whole


def spoiled(reference: RunFolder, other: RunFolder) -> list[str]:
    """Files of the reference that the other run lacks or has with another content."""
    return [name for name in differing_files(reference, other) if (reference.store / name).exists()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("configuration", ["tearag", "prograph"])
def test_a_run_that_was_killed_in_all_stages_equals_the_uninterrupted_run(
    reported: RunFolder, tmp_path: Path, configuration: str
) -> None:
    """Each stage is killed once. `test_killed_training.py` kills trainings more often."""
    if configuration == "prograph":
        reported = RunFolder(tmp_path / "reference", (), PROGRAPH).prepare()
        reported.finish()
    victim = replace(reported, root=tmp_path / "victim").prepare()
    chance = random.Random(1)
    killed = [kill_during(victim, stage, chance.uniform(-0.3, 1)) for stage in reported.seconds()]
    assert any(killed), "the run ended before its kills"
    victim.finish()
    assert differing_files(reported, victim) == [], killed


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("shards", "workers"), [(2, 2), (3, 1)])
def test_a_run_in_shards_by_several_workers_equals_the_undivided_run(
    trained: RunFolder, tmp_path: Path, shards: int, workers: int
) -> None:
    settings = (*trained.overrides, f"shards={shards}", f"workers={workers}")
    divided = replace(trained, root=tmp_path / "divided", overrides=settings).prepare()
    divided.finish()
    assert spoiled(trained, divided) == []


GROWING = """
base: {configs}/embedded.yaml
name: small
start: base
rounds: 0
data: {closed_world: null, root: docs, sft: [], sampling: [], validation: [],
       test: [{dataset: questions, path: test.jsonl}]}
corpus: {files: [{path: documents.jsonl, format: jsonl}]}
graph: {source: titles, path: null}
index: {links: true}
retrieval: {variant: linked}
"""


def write_documents(run: RunFolder, count: int) -> None:
    """The first ``count`` documents, each of which names the one before."""
    folder = run.root / "docs"
    folder.mkdir(exist_ok=True)
    texts = [{"title": f"Tor {n}", "text": f"Tor {n} lies near Tor {n - 1}."} for n in range(count)]
    (folder / "documents.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (folder / "test.jsonl").write_text('{"question": "Where is Tor 1?", "answer": "Tor 0"}\n')


def test_a_run_that_was_killed_while_it_extracted_equals_the_uninterrupted_run(
    tmp_path: Path,
) -> None:
    """Of 12 chunks the model answers 5 before the kill; the rerun asks about none of these again."""
    goes_on = threading.Event()

    def script(text: str, before: int) -> str:
        if server.request_counts.total() > 5:
            assert goes_on.wait(LIMIT)
        return json.dumps([[text.split("Title: ")[-1][:8], "lies near", "the sea"]])

    with FakeEndpoint(script) as server:
        asked = {"base_url": server.url, "model": "m", "concurrency": 1}
        extracting = GROWING.replace(
            "{source: titles, path: null}", json.dumps({"source": "llm", "path": None, "endpoint": asked})
        )  # fmt: skip
        victim, whole = (
            RunFolder(tmp_path / name, (), extracting, ("graph",)).prepare()
            for name in ("victim", "whole")
        )
        for run in (victim, whole):
            write_documents(run, 12)
        with ending(victim.start("run", "graph")) as process:
            wait_until(lambda: server.request_counts.total() == 6)
            os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not victim.orphans())
        goes_on.set()
        victim.finish_here()
        assert server.request_counts.total() == 13
        whole.finish_here()
        assert server.request_counts.total() == 25
    assert differing_files(whole, victim) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_was_killed_while_its_corpus_grew_equals_a_run_of_the_whole_corpus(
    tmp_path: Path,
) -> None:
    whole, grown = (
        RunFolder(tmp_path / name, (), GROWING, ("index",)).prepare() for name in ("whole", "grown")
    )
    write_documents(whole, 900)
    whole.finish()
    write_documents(grown, 600)
    grown.finish()
    write_documents(grown, 900)
    killed = [
        kill_during(grown, stage, share)
        for stage, share in (("corpus", -1), ("index", 0.4), ("index", 0.8))
    ]
    assert any(killed), "the run ended before its kills"
    grown.finish()
    assert spoiled(whole, grown) == [], killed


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_lost_nodes_of_a_ray_cluster_equals_the_local_run(
    reported: RunFolder, tmp_path: Path
) -> None:
    overrides = (*reported.overrides, "execution.kind=ray", "execution.threads=2")
    victim = replace(reported, root=tmp_path / "victim", overrides=overrides).prepare()
    stages = ["sample-1", "score-1"]
    with ray_nodes(2, cpus=2) as nodes:
        printed, lost = finish_with_losses(victim, nodes, stages, random.Random(0))
    assert lost == stages
    assert ", from its checkpoint (start " in printed
    assert victim.orphans() == []
    assert differing_files(reported, victim) == []


PAIRED = {
    "corpus", "graph", "index", "pair", "questions-sampling", "questions-sft", "questions-test",
    "questions-validation", "sample", "score", "sft", "sft-data",
}  # fmt: skip
WHOLE = PAIRED | {"train", "coverage", "evaluate-policy", "evaluate", "report"}
RUNS = ["paired", pytest.param("reported", marks=pytest.mark.slow)]
TABLES = {  # of the stages that write several, the default first, or one of another name
    "sft-data": ["default"], "graph": ["triplets", "entities"], "pair": ["pairs", "funnel"],
    "sft": ["log"], "train": ["log"], "evaluate": ["comparison", "metrics"], "report": ["metrics"],
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_output_of_a_run_loads_as_a_data_set(
    name: str, request: pytest.FixtureRequest
) -> None:
    tables = load_outputs(request.getfixturevalue(name).store)
    assert tables.keys() == (PAIRED if name == "paired" else WHOLE)
    assert tables["corpus"] == {"chunks": 200}
    assert tables["sft-data"]["default"] == 160
    named = TABLES.keys() & tables.keys()
    assert {stage: list(tables[stage]) for stage in named} == {n: TABLES[n] for n in named}


def test_rewards_are_numbers_in_columns(paired: RunFolder) -> None:
    [file] = paired.store.glob("score/*/trajectories.parquet")
    rewards = pq.read_schema(file).field("rewards").type
    assert rewards.field("total").type == pa.float64()
    assert str(rewards.field("memory").type.field("context").type) == "list<element: double>"


def test_every_log_says_what_its_stage_did_and_no_record_is_left(paired: RunFolder) -> None:
    logs = paired.root / "runs" / "small" / "logs"
    for label in paired.seconds():
        lines = (logs / f"{label}.log").read_text().splitlines()
        assert lines[1].startswith("stage "), label
        assert lines[-1].startswith("wrote "), label
        assert len(lines) >= 4, label  # beside these: inputs, and what was done
    assert not [*paired.store.rglob("*.progress.json"), *paired.store.rglob("*.failed.json")]


def flip(content: bytes) -> bytes:
    """The content with another bit in its middle."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "flipped": flip,
    "emptied": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("name", RUNS)
def test_damaged_outputs_of_a_run_are_named(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of all stages, one at a time; a manifest is not hashed, so that it is only cut."""
    run: RunFolder = request.getfixturevalue(name)
    monkeypatch.chdir(run.root)
    task = task_for("report", "small.yaml", run.overrides)
    outputs = {row.label: Path(row.directory) for row in status.verify(task)}
    files = [(label, p) for label, d in outputs.items() for p in d.rglob("*") if p.is_file()]
    chance = random.Random(0)
    for name, damage in DAMAGES.items():
        for label, path in chance.sample([one for one in files if one[1].stat().st_size > 1], 3):
            content = path.read_bytes()
            kind = DAMAGES["cut"] if path.name == "manifest.json" else damage
            path.write_bytes(kind(content))
            damaged = [row.label for row in status.verify(task) if row.damage]
            path.write_bytes(content)
            assert damaged == [label], (name, path)
    assert not any(row.damage for row in status.verify(task))


def tutorial() -> Iterator[str]:
    """The commands of the tutorial, for a run that is called small and has one round."""
    text = (shipped.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        command = line.removeprefix("$ ").partition("  #")[0].strip()
        if re.match("(make|steep|head|mkdir) ", command):
            command = re.sub(r"(ROUND=|--round |pair:|per_round\.)2", r"\g<1>1", command)
            # Questions of one hop have no process, whose weights therefore change nothing here.
            command = command.replace("rewards.tearag.context=0", "dpo.learning_rate=2.0e-3")
            command = command.replace("--kind easy", "--kind format")  # its only kind
            yield command.replace("runs/embedded", "runs/small").replace(" embedded ", " small ")


def output(run: RunFolder, command: str) -> str:
    """What a command of the tutorial prints in the folder of ``run``; it has to succeed."""
    command, given, redirection = command.partition(" < ")
    words = shlex.split(command)
    if words[0] == "make":
        recipe = ["make", "--dry-run", "--no-print-directory", "-o", ".venv/.from-lock"]
        lines = subprocess.check_output(recipe + words[1:], cwd=shipped.ROOT, text=True)
        words = shlex.split(lines[lines.index(".venv/bin/steep") :])  # after checks of the options
        words = [word for word in words if word not in ("--config", "configs/embedded.yaml")]
    if words[0].endswith("steep"):
        words = [sys.executable, "-m", "pipeline.cli", *words[1:]]
        if not {"compare", "fork", "--from"} & set(words):
            words += ["--config", "small.yaml", *(f"--set={setting}" for setting in TINY)]
        command = shlex.join(words)
    done = subprocess.run(
        command + given + redirection,
        shell=True,
        cwd=run.root,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_page_about_using_a_policy_works(trained: RunFolder) -> None:
    """`tests/tasks/test_serving.py` serves a policy."""
    [file] = trained.root.glob("data/closed_world/world/*/nq_test.jsonl")
    question = json.loads(file.read_text().splitlines()[0])["question"]
    (trained.root / "questions.txt").write_text(f"{question}\n")
    docs = shipped.ROOT / "docs"
    page = (docs / "howto" / "use-a-policy.md").read_text(encoding="utf-8")
    asked = re.findall(
        "^steep ask .*$", (docs / "look.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    page += "\n".join(["", "```", *asked, "```", ""])  # to which the page leads for all options
    page = page.replace("QUESTION", question).replace("FILE", str(file))
    for old in ("--policy 3", "sft,3", "--round 2"):
        page = page.replace(old, f"{old[:-1]}1")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for kind, text in blocks if not kind for line in text.splitlines()]
    printed = {}
    for line in lines:
        command = line.partition("  #")[0].strip()
        if command.startswith("steep ") and command != "steep serve":
            printed[command] = output(trained, command)
    assert len(printed) == 7
    answered = json.loads((trained.root / "answers.jsonl").read_text())
    assert (answered["question"], answered["policy"]) == (question, "round-1")
    [program] = [text for kind, text in blocks if kind == "python"]
    subprocess.run([sys.executable, "-c", program], cwd=trained.root, check=True, env=environment())
    for name in ("policy", "merged"):
        assert "| questions | musique, nq |" in (trained.root / name / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_tutorial_works_in_a_run_of_another_seed(reported: RunFolder) -> None:
    """ID and QUESTION stand for what the commands before them print."""
    found: dict[str, str] = {}
    commands = [command for command in tutorial() if command not in ("make browse", "make run")]
    for command in commands:
        for name, value in found.items():
            command = command.replace(name, value)
        printed = output(reported, command)
        if identity := re.search(r"\S+/\d+@[0-9a-f]+", printed):
            found["ID"] = identity[0]
        if command.startswith("head"):
            found["QUESTION"] = json.loads(printed.splitlines()[-1])["question"]
    assert len(commands) > 8
    assert found.keys() == {"ID", "QUESTION"}


def test_runs_that_differ_in_one_value_are_told_apart(tmp_path: Path) -> None:
    runs = [RunFolder(tmp_path / name) for name in ("one", "other")]
    for run, em in zip(runs, (0.5, 0.25), strict=True):
        output = run.store / "evaluate" / "0123456789abcdef"
        output.mkdir(parents=True)
        (output / "metrics.json").write_text(json.dumps([{"em": em, "seconds": {"total": em}}]))
        (output / "timing.json").write_text(str(em))
        (output / "same.bin").write_bytes(b"same")
    assert differing_files(*runs) == ["evaluate/0123456789abcdef/metrics.json"]
