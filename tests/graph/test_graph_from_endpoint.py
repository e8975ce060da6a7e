"""The graph stage with an endpoint, whose server counts the calls."""

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import Triplet
from pipeline.core.row_files import read_jsonl
from pipeline.engine.run import RunFailed, run
from tasks.graph import Graph
from tests.llm.fake_endpoint import FakeEndpoint, Response, completion, refusal

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-test-0123456789abcdef"


def task(workspace: Path, server: FakeEndpoint, **endpoint: object) -> Graph:
    settings = {"base_url": server.url, "model": "fake", "api_key_env": "FAKE_KEY", **endpoint}
    return Graph(
        config=str(ROOT / "configs/embedded.yaml"),
        overrides=(
            f"runs_dir={workspace / 'runs'}",
            f"cache_dir={workspace / 'cache'}",
            "data={}",
            "corpus.files=[{path: documents.jsonl}]",
            f"graph={json.dumps({'source': 'llm', 'endpoint': settings})}",
        ),
        data=str(workspace),
    )


def script(text: str, before: int) -> str | Response:
    if "Bo" in text:
        return refusal(400, f"flagged by the content filter, {KEY}")
    if "Emma" in text and not before:
        return refusal(500, "busy")
    body = completion('```json\n[["Ann", "born in", "Rome"], ["Ann", "sings"]]\n```', key=KEY)
    return Response(body=body)


def test_graph_from_an_endpoint_is_resumed_and_reused_without_leaking_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = {"Ann": "Ann was born.", "Bo": "Bo sings.", "Emma": "Emma is a film."}
    lines = [json.dumps({"title": name, "text": text}) + "\n" for name, text in texts.items()]
    (tmp_path / "documents.jsonl").write_text("".join(lines))
    monkeypatch.setenv("FAKE_KEY", KEY)
    # Requests to the test's server must not go through a proxy of this machine.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    denied = refusal(401, f"Incorrect API key provided: {KEY}")
    with FakeEndpoint(lambda text, before: denied) as closed, FakeEndpoint(script) as server:
        with pytest.raises(RunFailed, match="set FAKE_KEY to a key that is valid") as caught:
            run(task(tmp_path, closed))
        assert caught.value.exit_status == 2
        done = run(task(tmp_path, server, prices={"prompt": 1.0}, cost_ceiling=9))
        requests = server.request_counts.total()
        assert requests == 4  # three chunks, one of them twice
        run(
            task(tmp_path, server, concurrency=1, prices={"prompt": 2.0}, cost_ceiling=9, timeout=5)
        )
        assert server.request_counts.total() == requests
        run(task(tmp_path, server), force=True)
        assert server.request_counts.total() == requests
        assert not task(tmp_path, server, model="other").complete()
    assert [
        (triplet.id[-2:], triplet.text)
        for triplet in read_records(done / "triplets.parquet", Triplet)
    ] == [(":0", "Ann born in Rome")] * 2
    reasons = [value["reason"] for _, value in read_jsonl(done / "rejects.jsonl")]
    assert sorted(reasons) == ["content filter", "length 2", "length 2"]
    assert not (done / "chat.json").read_text().count(KEY)
    assert json.loads((done / "chat.json").read_text())["answers"] == 3
    out, err = capfd.readouterr()
    written = [out, err, str(caught.value)]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            written.append(path.read_bytes().decode("latin-1"))
    assert any("flagged by the content filter" in text for text in written)
    assert not any(KEY in text for text in written)
