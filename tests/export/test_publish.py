"""``steep publish`` lists what it would upload, and uploads it to the hub with ``--yes``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.core import shipped
from tests.cli.malformed_inputs import steep

CARD = "---\nlicense: mit\nbase_model: some/base\nmodel-index:\n- name: x\n  results: []\n---\n\n# Policy\n"


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "README.md").write_text(CARD)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_a_dry_run_lists_files_licence_and_what_the_card_lacks(policy: Path) -> None:
    (policy / "README.md").write_text("---\nbase_model: /srv/models/base\n---\n")
    status, printed, complaint = steep(["publish", str(policy), "--repo", "me/policy"])
    assert (status, complaint) == (0, "")
    assert [" ".join(line.split()) for line in printed.splitlines()] == [
        "37 README.md",
        "2 adapter_config.json",
        "39 bytes to the model me/policy",
        "licence: none",
        "the card lacks license: what others may do with it",
        "the card lacks model-index: results of the evaluation",
        "the card lacks base_model: a name on the hub, in place of /srv/models/base",
        "nothing was uploaded; add --yes to upload",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--repo", "me/policy", "--yes"], "there is no token of the hub"),
        (["--repo", "policy"], "--repo: expected OWNER/NAME, got 'policy'"),
        (["--repo", "me/po licy"], "--repo: expected OWNER/NAME, got 'me/po licy'"),
    ],
)
def test_what_is_missing_is_one_sentence(policy: Path, words: list[str], told: str) -> None:
    status, _, complaint = steep(["publish", str(policy), *words])
    assert status == 2
    assert told in complaint


def test_a_directory_without_a_card_is_refused(tmp_path: Path) -> None:
    status, _, complaint = steep(["publish", str(tmp_path), "--repo", "me/x"])
    assert status == 2
    assert "has no README.md with a YAML header" in complaint


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that one commit of small text files needs."""

    asked: ClassVar[list[tuple[str, str, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self.asked.append((self.path, self.headers["authorization"], body))
        url = f"http://{self.headers['host']}/me/policy"
        if self.path.endswith("/repos/create"):
            answer: object = {"url": url}
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            answer = {"files": modes}
        elif "/commit/" in self.path:
            answer = {"commitUrl": f"{url}/commit/abc", "commitOid": "abc", "success": True}
        else:  # validation of the card
            answer = {"warnings": [], "errors": []}
        self._send(answer)

    def do_GET(self) -> None:
        self._send({"id": "me/policy", "sha": "0" * 40, "siblings": []})

    def _send(self, answer: object) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_the_client_of_the_hub_uploads_all_files_in_one_commit(policy: Path, hub: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "publish", "policy", "--repo", "me/policy", "--yes"],
        cwd=policy.parent, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(shipped.ROOT), "HF_ENDPOINT": hub, "HF_TOKEN": "hf_secret",
             "HF_HUB_OFFLINE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub}/me/policy"
    assert "hf_secret" not in done.stdout + done.stderr
    [commit] = [body for path, _, body in Hub.asked if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    files = [line["value"]["path"] for line in lines if line["key"] == "file"]
    assert sorted(files) == ["README.md", "adapter_config.json"]
    assert {key for _, key, _ in Hub.asked} == {"Bearer hf_secret"}
