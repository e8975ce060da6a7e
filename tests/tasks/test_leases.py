"""GPUs and CPU threads that stages are given, within a run, between runs and after kills."""

import os
import signal
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from pipeline.core.atomic import write_text
from pipeline.core.errors import ConfigError, StoreError
from pipeline.core.gpus import listed
from pipeline.engine.leases import (
    LOCK_DIR,
    Capacity,
    Lease,
    held,
    lock_dir,
    quota,
)
from pipeline.engine.opened import Needs
from pipeline.engine.run import run
from tests.tasks.counting_tasks import ROOT, background, task
from tests.tasks.leasing_tasks import Evaluates, Pairs, given
from tests.waiting import wait_until


@pytest.fixture
def place(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with lock files of its own, and none of the variables that leases read."""
    for folder in ("marks", "locks"):
        (workspace / folder).mkdir()
    monkeypatch.setenv("MARKS", str(workspace / "marks"))
    monkeypatch.setenv(LOCK_DIR, str(workspace / "locks"))
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return workspace


def asked(count: int, devices: str) -> tuple[Capacity, Needs]:
    return Capacity(count, count, tuple(devices.split(",")), threads=1, workers=1), Needs(count)


def write_tool(folder: Path, uuid: str) -> None:
    """Write an ``nvidia-smi`` that lists one GPU."""
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho 'H100, 81559, {uuid}'\n")
    (folder / "nvidia-smi").chmod(0o755)


def no_wait(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.slow
def test_eight_stages_on_four_devices_never_share_one(place, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7")
    monkeypatch.setenv("ROOM", "4")
    pair = task(Pairs, place, "gpus=4", "threads=10", "workers=null")
    run(pair, check=False)  # there is no GPU here
    found = [given(sample) for sample in pair.inputs.values()]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in found} == {"2", "3", "5", "7"}
    for one, other in combinations(found, 2):
        apart = one["end"] <= other["start"] or other["end"] <= one["start"]
        assert apart or one["CUDA_VISIBLE_DEVICES"] != other["CUDA_VISIBLE_DEVICES"]
    first = sorted(found, key=lambda one: one["start"])[:4]
    assert max(one["start"] for one in first) < min(one["end"] for one in first)  # all at once
    assert {one["OMP_NUM_THREADS"] for one in found} == {"2"}  # 10 threads, at most 5 stages
    last = given(pair)
    assert last["CUDA_VISIBLE_DEVICES"] == ""  # so that it cannot take a card
    assert last["MKL_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("texts", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)
def test_a_container_has_the_cores_of_its_quota(tmp_path, texts, cores):
    for name, text in texts.items():
        write_text(tmp_path / name, text)
    assert quota(tmp_path) == cores


def test_exported_threads_are_an_upper_bound():
    lease = Lease(threads=4)
    assert lease.environment({})["OMP_NUM_THREADS"] == "4"
    bounded = lease.environment({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "9"})
    assert [bounded[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")] == [
        "2",
        "4",
        "2",
    ]
    assert bounded["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert set(Lease().environment({"OMP_NUM_THREADS": "2"})) == {"MKL_CBWR"}


PRODUCTS = """
import hashlib, torch
values, digest = torch.Generator().manual_seed(0), hashlib.sha256()
weights = torch.randn(1536, 384, generator=values)
for rows in range(1, 129, 9):
    inputs = torch.randn(rows, 384, generator=values)
    digest.update(torch.nn.functional.linear(inputs, weights).numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_products_of_a_stage_a_command_and_an_open_run_are_equal_with_any_threads(tmp_path):
    """A retrieval service and `Run.ask` compute outside of a stage, with all cores."""
    (tmp_path / "products.py").write_text(PRODUCTS)
    inherited = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    inherited.pop("MKL_CBWR", None)
    alone = inherited | {"OMP_NUM_THREADS": "2"}
    programs = [
        ("import products", inherited | Lease(threads=1).environment({})),
        ("from pipeline.cli.app import main\nmain(lambda: __import__('products'))", alone),
        ("from pipeline import Run\nRun.open('embedded')\nimport products", alone),
    ]
    found = {
        subprocess.check_output([sys.executable, "-c", text], env=environment, cwd=ROOT)
        for text, environment in programs
    }
    assert len(found) == 1


def test_a_device_is_free_when_the_last_process_of_a_killed_run_has_ended(place, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    mark = place / "marks" / "evaluates"
    # There is no GPU here, which the checks would say.
    with background(Evaluates, place, "gpus=1", check=False) as scheduler:
        wait_until(mark.exists)
        device, process = mark.read_text().split()
        assert device == "4"
        with held(*asked(1, "4,5"), no_wait) as other:
            assert other.devices == ("5",)
        os.kill(int(process), signal.SIGSTOP)  # it cannot end while it is stopped
        wait_until(lambda: psutil.Process(int(process)).status() == psutil.STATUS_STOPPED)
        scheduler.kill()
    said: list[str] = []

    def waits(text: str) -> None:
        said.append(text)
        os.kill(int(process), signal.SIGCONT)

    with held(*asked(1, "4"), waits) as lease:
        assert lease.devices == ("4",)
    assert said == [f"waits for 1 GPU: another run on this machine holds 4 ({place / 'locks'})"]


def test_an_index_in_two_slurm_jobs_is_two_devices(place, monkeypatch):
    """Each job sees its own GPU alone, as index 0; a UUID names the same device everywhere."""
    for number, uuid in enumerate(("GPU-1a", "GPU-2b")):
        write_tool(place / str(number), uuid)
    monkeypatch.setenv("PATH", str(place / "0"))
    assert listed() == ("GPU-1a",)
    with held(*asked(1, "0"), no_wait) as one:
        monkeypatch.setenv("PATH", str(place / "1"))
        with held(*asked(1, "0"), no_wait) as other:
            assert (one.devices, other.devices) == (("0",), ("0",))
            with held(*asked(1, "GPU-1a,GPU-7"), no_wait) as third:
                assert third.devices == ("GPU-7",)


@pytest.mark.parametrize("name", ["3", "GPU-1a", "MIG-5c0a", "MIG-GPU-1a/7/0", "nvidia0"])
def test_lock_files_are_for_every_user_and_kind_of_device(place, name):
    earlier = os.umask(0o077)
    try:
        with held(*asked(1, name), no_wait) as lease:
            assert lease.devices == (name,)
            files = [path.stat().st_mode & 0o777 for path in (place / "locks").iterdir()]
    finally:
        os.umask(earlier)
    assert files == [0o644, 0o644]


def test_runs_with_other_temporary_folders_have_the_same_lock_files(monkeypatch, tmp_path):
    """Also where users cannot write in /run/lock, as on Red Hat's systems."""
    monkeypatch.delenv(LOCK_DIR, raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert lock_dir() == Path("/tmp")


def test_a_folder_that_takes_no_lock_files_is_named_with_its_variable(place, monkeypatch):
    (place / "file").touch()
    monkeypatch.setenv(LOCK_DIR, str(place / "file"))
    with (
        pytest.raises(StoreError, match=f"/file.*; set {LOCK_DIR} to"),
        held(*asked(1, "0"), no_wait),
    ):
        pass


def capacity(place: Path, *overrides: str, present: tuple[str, ...] = (), **variables: str):
    settings = task(Evaluates, place, *overrides).settings
    return Capacity.of(settings, environment=variables, present=present)


def test_a_run_has_the_allotted_devices(place):
    found = capacity(place, "gpus=2", "workers=null", CUDA_VISIBLE_DEVICES="4,6,7")
    assert (found.gpus, found.at_once, found.devices) == (2, 2, ("4", "6", "7"))
    assert found.workers == 3  # one stage on each device, and one without
    assert capacity(place, "gpus=2").devices == ("0", "1")
    assert capacity(place, "gpus=2", "workers=1").workers == 1
    assert capacity(place, "workers=null").workers == 1


def test_more_gpus_than_allotted_are_refused(place):
    with pytest.raises(
        ConfigError, match="gpus is 3, and CUDA_VISIBLE_DEVICES allots 2; set gpus to at most 2"
    ):
        capacity(place, "gpus=3", CUDA_VISIBLE_DEVICES="4,6")
    with pytest.raises(ConfigError, match="gpus is 1, and CUDA_VISIBLE_DEVICES allots none;"):
        capacity(place, "gpus=1", CUDA_VISIBLE_DEVICES="")
    with pytest.raises(ConfigError, match="gpus is 3, and this machine has 1; set gpus to at most"):
        capacity(place, "gpus=3", present=("GPU-1a",))


def test_without_a_number_stages_run_one_at_a_time_and_see_the_devices_they_ask_for(place):
    """A process that trains alone and sees two devices would use both (``nn.DataParallel``)."""
    found = capacity(place, "gpus=0", present=("GPU-1a", "GPU-2b"))
    assert (found.gpus, found.at_once) == (2, 1)
    for count, devices in ((0, ""), (1, "0"), (2, "0,1"), (8, "0,1")):
        with held(found, Needs(count), no_wait) as lease:
            assert lease.environment({})["CUDA_VISIBLE_DEVICES"] == devices
            assert len(lease.held) == min(count, 2)
    assert capacity(place, "gpus=0", CUDA_VISIBLE_DEVICES="0").gpus == 0  # a machine without a GPU


def test_threads_are_shared_by_the_stages_that_run_at_once(place):
    two = capacity(place, "threads=2", "workers=2")
    assert [two.threads_for(processes) for processes in (1, 2, 8)] == [1, 2, 2]
    many = capacity(place, "threads=16", "workers=2")
    assert [many.threads_for(processes) for processes in (1, 2, 12)] == [8, 8, 12]
    for processes, threads in ((1, 8), (2, 4), (12, 1)):
        with held(many, Needs(0, processes), no_wait) as lease:
            assert lease.threads == threads
    assert capacity(place, "workers=100").threads >= 100  # each stage has one at least
