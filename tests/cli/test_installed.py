"""``steep`` installed from a wheel, used in a folder that is no source checkout."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest

from pipeline.core.shipped import DEMONSTRATION, configuration_names
from tests.waiting import LIMIT

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("pipeline", "tasks", "configs", "data/tiny_reader", "data/demo")
PACKAGED_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# The commands of README without make; uv takes the same words after "uv ".
WITHOUT_MAKE = """
python3 -m venv ~/steep
. ~/steep/bin/activate
pip install --no-deps --index-url https://download.pytorch.org/whl/cpu $(grep ^torch== requirements/cpu.lock)
pip install --no-deps -r requirements/cpu.lock
pip install --no-deps .
"""
WITH_UV = WITHOUT_MAKE.replace("python3 -m venv", "uv venv").replace(
    "pip install", "uv pip install"
)
SMALL_WORLD = (
    "data.closed_world={seed: 3, documents: 600, musique_train: 30, musique_sampling: 9, "
    "musique_dev: 9, musique_test: 9, hotpotqa_sampling: 2, hotpotqa_dev: 2, hotpotqa_test: 2, "
    "wiki2_test: 2, nq_sampling: 2, nq_dev: 2, nq_test: 2}"
)


def call(*arguments: object, cwd: Path, stdin: str | None = None) -> str:
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(source: Path, folder: Path) -> Path:
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", "wheel", source, *options, cwd=source.parent)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that are packaged: a build writes beside its sources."""
    source = tmp_path_factory.mktemp("source") / "steep"
    for name in PACKAGED:
        ignored = shutil.ignore_patterns("__pycache__", "work")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in PACKAGED_FILES:
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def steep(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script in a new environment, where only steep comes from the wheel."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet")
    call(*pip, wheel, cwd=environment.parent)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "steep"


@pytest.mark.parametrize("commands", [WITHOUT_MAKE, WITH_UV], ids=["pip", "uv"])
def test_steep_is_installed_without_make_and_shows_its_demonstration_run(
    wheel: Path, tmp_path: Path, commands: str
) -> None:
    """README's commands. The packages of the lock are those of this environment."""
    assert WITHOUT_MAKE.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()
    lines = [line for line in commands.split("\n") if "cpu.lock" not in line]
    script = "\n".join(lines).replace("--no-deps .", f"--no-deps {wheel}")
    script += (
        f"echo {sysconfig.get_path('purelib')} > $(echo ~/steep/lib/python*/site-packages)/a.pth"
    )
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home"),
    }  # fmt: skip
    shell = ("bash", "-euc", script)
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    steep = tmp_path / "home" / "steep" / "bin" / "steep"
    command = (steep, "browse", "--demo", "--port", "0")
    with subprocess.Popen(
        command, cwd=tmp_path / "empty", stdout=PIPE, text=True, env={}
    ) as process:
        assert process.stdout is not None
        address = next(line.split()[0] for line in process.stdout if line.startswith("http"))
        assert "Why this pair" in httpx.get(f"{address}run/demo/pair/round-2/0", timeout=LIMIT).text
        process.send_signal(signal.SIGINT)
    assert list((tmp_path / "empty").iterdir()) == []


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_holds_the_configurations_the_tiny_reader_and_the_demonstration_run(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    reader = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names(wheel) >= {f"pipeline/shipped/data/tiny_reader/{name}" for name in reader}
    shipped = {f"pipeline/shipped/configs/{name}.yaml" for name in configuration_names()}
    assert names(wheel) >= shipped
    demonstrated = {path for path in DEMONSTRATION.rglob("*") if path.is_file()}
    assert names(wheel) >= {f"pipeline/shipped/{path.relative_to(ROOT)}" for path in demonstrated}
    call(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, cwd=source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert names(build_wheel(sdist, tmp_path)) == names(wheel)


def test_an_installed_steep_runs_in_an_empty_folder(steep: Path, tmp_path: Path) -> None:
    package = {path for path in steep.parents[1].rglob("*") if "__pycache__" not in path.parts}
    (tmp_path / "pipeline.py").write_text("raise SystemExit('the wrong pipeline')\n")
    call(steep, "init", cwd=tmp_path)
    assert (tmp_path / "embedded.yaml").is_file()
    status = ("status", "--config", "embedded.yaml", "--json", "--set", SMALL_WORLD)
    states = json.loads(call(steep, *status, cwd=tmp_path))
    assert {row["state"] for row in states} == {"missing"}
    checkout = (sys.executable, "-m", "pipeline.cli", *status[:1], *status[3:])
    in_checkout = json.loads(call(*checkout, "--set", f"runs_dir={tmp_path}/other", cwd=ROOT))
    assert [Path(row["directory"]).name for row in states] == [
        Path(row["directory"]).name for row in in_checkout
    ]  # the same fingerprints, that of the tiny reader's content included

    call(steep, "run", "corpus", "--config", "embedded.yaml", "--set", SMALL_WORLD, cwd=tmp_path)
    states = json.loads(call(steep, *status, cwd=tmp_path))
    done = {row["label"]: row["directory"] for row in states if row["state"] == "done"}
    assert done.keys() == {"world", "corpus"}
    assert (tmp_path / done["corpus"] / "chunks.parquet").is_file()
    assert (tmp_path / "data" / "closed_world").is_dir()
    manifest = json.loads((tmp_path / done["corpus"] / "manifest.json").read_text())
    assert manifest["git"] is None
    record = json.dumps({"output": "Final answer: poet"})
    assert json.loads(call(steep, "parse", "-", cwd=tmp_path, stdin=record))["format_ok"] is False
    after = {path for path in steep.parents[1].rglob("*") if "__pycache__" not in path.parts}
    assert after == package  # nothing is written into the installation
