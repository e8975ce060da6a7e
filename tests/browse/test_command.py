"""The command ``steep browse``: which outputs it opens, its refusals, and its server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pipeline.core.errors import StoreError
from pipeline.look.browse.index import open_index
from pipeline.look.browse.queries import Queries
from pipeline.look.browse.site import RunEntry, Site
from pipeline.look.browse.sources import find_sources
from tests.browse.stored_run import NAME
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*options: str, folder: Path | None = None) -> Iterator[list[str]]:
    """The lines of the running command up to its address; it is interrupted at the end, as by Ctrl-C."""
    command = [sys.executable, "-m", "pipeline.cli", "browse", "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("http"):
                    break
            yield lines
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) in (0, 130)


def test_another_address_needs_the_token_that_is_printed(runs: Path) -> None:
    settings = {"runs_dir": runs, "name": NAME, "cache_dir": runs / "cache"}
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with started("--host", "0.0.0.0", *given) as lines:
        address = lines[-1].split()[0].replace("0.0.0.0", "127.0.0.1")
        assert re.search(r"\?token=\S{20,}", address)
        assert httpx.get(address.partition("?")[0], timeout=LIMIT).status_code == 401
        with httpx.Client(follow_redirects=True, timeout=LIMIT) as browser:
            page = browser.get(address).text
    assert "6 rows" in page
    assert "of the shown outputs are stale" in page


def test_a_run_without_trajectories_names_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run with the same options: steep run pair"):
        find_sources("empty", tmp_path / "store")


def test_records_of_one_round_belong_together(runs: Path) -> None:
    """Pairs are shown with the trajectories that they were made from, not with newer ones."""
    store = runs / NAME / "store"
    newer = store / "score" / "newer"
    shutil.copytree(store / "score" / f"{NAME}-c1", newer)
    manifest = json.loads((newer / "manifest.json").read_text()) | {"fingerprint": "newer"}
    (newer / "manifest.json").write_text(json.dumps(manifest))
    for current in (None, [newer]):  # also if the configuration names the newer ones
        group = find_sources(NAME, store, current).group("round-1")
        assert group is not None
        assert group.trajectories == store / "score" / f"{NAME}-c1" / "trajectories.parquet"


def test_outputs_of_other_settings_are_listed_as_stale(runs: Path) -> None:
    store = runs / NAME / "store"
    sources = find_sources(NAME, store, [store / "pair" / f"{NAME}-p1"])
    assert not any(line.startswith("pair-1 ") for line in sources.stale)
    assert any(line.startswith("pair-2 was made with other settings") for line in sources.stale)
    assert find_sources(NAME, store).stale == ()


def test_the_side_table_is_built_once_for_each_state_of_the_files(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, cache = runs / NAME / "store", runs / "cache"
    for _ in range(2):
        open_index(find_sources(NAME, store), cache).close()
    assert capsys.readouterr().err.count("indexing") == 1
    shutil.rmtree(store / "pair" / f"{NAME}-p2")
    connection = open_index(find_sources(NAME, store), cache)
    assert Queries(connection).rows_of("SELECT count(*) FROM pairs") == [(3,)]
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_file_is_named_and_leaves_no_table(runs: Path) -> None:
    store = runs / NAME / "store"
    file = store / "score" / f"{NAME}-c1" / "trajectories.parquet"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"trajectories\.parquet"):
        open_index(find_sources(NAME, store), runs / "cache")
    assert list((runs / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named_with_the_setting(runs: Path) -> None:
    site = Site({NAME: RunEntry(NAME, runs / NAME / "store")}, Path("/sys/steep"))
    with pytest.raises(StoreError, match=r"^/sys/steep: .*set runs_dir and cache_dir to another"):
        _ = site.first.queries
