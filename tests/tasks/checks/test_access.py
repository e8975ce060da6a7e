"""Gated, private and misspelled models of the hub are named before anything is fetched."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.test_cli import ROOT

GATED, UNKNOWN = "meta-llama/gated", "owner/unknown"
CODE = """
import os, sys
from pipeline.engine.check.models import access_faults
from tests.tasks.declared import opened
for argument in sys.argv[1:]:
    model, _, os.environ["HF_TOKEN"] = argument.partition("@")
    print(*access_faults(opened("embedded", ["sft"], (f"model.base={model}",))))
"""


class _Hub(BaseHTTPRequestHandler):
    asked: list[tuple[str, str | None]]

    def do_HEAD(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        allowed = self.headers.get("Authorization") == "Bearer hf_accepted"
        if GATED in self.path and not allowed:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
        elif UNKNOWN in self.path:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
        else:
            self.send_response(200)
            self.send_header("ETag", '"1"')
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


def faults(endpoint: str, home: Path, *models: str, **variables: str) -> list[str]:
    """The faults of each of ``models``, given as ``MODEL`` or ``MODEL@TOKEN``, in a process of their own."""
    environment = {name: value for name, value in os.environ.items() if name[:3] != "HF_"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", CODE, *models],
        capture_output=True, text=True, check=True, env=environment | variables,
    ).stdout.splitlines()  # fmt: skip


def test_the_hub_is_asked_for_each_model_that_is_to_be_fetched(hub, tmp_path: Path) -> None:
    endpoint, asked = hub
    models = (f"{GATED}@hf_other", f"{GATED}@hf_accepted", UNKNOWN)
    refused, accepted, unknown = faults(endpoint, tmp_path, *models)
    assert refused.startswith(f"model.base: {GATED} needs a token (hf auth login, or HF_TOKEN)")
    assert refused.endswith(f"accepted its licence at https://huggingface.co/{GATED}")
    assert accepted == ""
    assert "is not on the hub, or is private" in unknown
    assert len(asked) == 3
    assert faults(endpoint, tmp_path, GATED, HF_HUB_OFFLINE="1") == [""]
    assert len(asked) == 3


def test_a_hub_that_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    [found] = faults("http://127.0.0.1:9", tmp_path, UNKNOWN)
    assert "is not in the cache of the hub, and the hub does not give it (" in found
