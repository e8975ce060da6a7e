"""Gated, private and misspelled models of the hub are named before anything is fetched."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from pipeline.engine.check.models import access_faults
from tests.cli.test_cli import ROOT
from tests.tasks.declared import opened

GATED, UNKNOWN, SILENT = "meta-llama/gated", "owner/unknown", "owner/silent"
CODE = """
import os, sys
from pipeline.engine.check.models import access_faults
from tests.tasks.declared import opened
for argument in sys.argv[1:]:
    model, _, os.environ["HF_TOKEN"] = argument.partition("@")
    print(*access_faults(opened("embedded", ["sft"], (f"model.base={model}",))))
"""


class _Hub(BaseHTTPRequestHandler):
    asked: list[str]

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        if SILENT in self.path:
            self.close_connection = True
            return
        allowed = self.headers.get("Authorization") == "Bearer hf_accepted"
        status, name, value = 200, "ETag", '"1"'
        if GATED in self.path and not allowed:
            status, name, value = 403, "X-Error-Code", "GatedRepo"
        elif UNKNOWN in self.path:
            status, name, value = 404, "X-Error-Code", "RepoNotFound"
        self.send_response(status)
        self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list]]:
    handler = type("Hub", (_Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_for_each_model_that_is_to_be_fetched(hub, tmp_path: Path) -> None:
    """In a process of its own, because the client reads its variables once."""
    endpoint, asked = hub
    environment = {name: value for name, value in os.environ.items() if name[:3] != "HF_"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
    models = (f"{GATED}@hf_other", f"{GATED}@hf_accepted", UNKNOWN, SILENT)
    faults = subprocess.check_output(
        [sys.executable, "-c", CODE, *models], text=True, env=environment
    )
    refused, accepted, unknown, silent = faults.splitlines()
    assert refused.startswith(
        f"model.base: {GATED} is not in the cache of the hub, and the hub does"
    )
    assert "GatedRepoError" in refused
    assert f"accept its licence at https://huggingface.co/{GATED} and log in (hf auth" in refused
    assert accepted == ""
    assert "the hub does not give it (RepositoryNotFoundError" in unknown
    assert "is not in the cache of the hub, and the hub does not give it (" in silent
    assert [path.split("/resolve")[0] for path in dict.fromkeys(asked)] == [
        f"/{GATED}", f"/{UNKNOWN}", f"/{SILENT}",
    ]  # fmt: skip


def test_offline_the_hub_is_not_asked() -> None:
    assert list(access_faults(opened("embedded", ["sft"], (f"model.base={GATED}",)))) == []
