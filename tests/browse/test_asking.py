"""The page for asking: real answers of a small random model, its guards, and its messages."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.cli.browse import RunPolicies, open_site
from pipeline.core.errors import EngineError, InputError
from pipeline.core.records import Question
from pipeline.engine.run import write_resolved
from pipeline.look.browse.app import create_app
from pipeline.look.browse.asking import Desk, Tell
from pipeline.look.browse.security import LONGEST
from pipeline.rollout.answering import (
    LONGEST_QUESTION,
    Answered,
    PolicyProcess,
    question_record,
)
from pipeline.serving.named_policies import NamedPolicy
from tasks import task_for
from tests.browse.stored_run import HOSTILE, NAME, browsed, write_stored_run
from tests.tasks.small_run import finished_run, settings
from tests.waiting import LIMIT, wait_until


class Fake:
    """Policies of a run whose ``engine`` is started up to its ``yield`` and ended after it."""

    def __init__(self, engine: Callable[[Tell], Iterator[Sequence[Any]]]) -> None:
        self.engine = contextmanager(engine)

    def names(self) -> tuple[list[str], str]:
        return ["base"], "no policy is trained"

    def made(self, names: Sequence[str]) -> object:
        return None

    def opened(
        self, names: Sequence[str], tell: Tell
    ) -> AbstractContextManager[Sequence[PolicyProcess]]:
        return self.engine(tell)


def no_engine(tell: Tell) -> Iterator[Sequence[Any]]:
    tell("base: starting vllm")
    raise EngineError(f"vLLM cannot start: {HOSTILE}")
    yield ()


@pytest.fixture(scope="module")
def client(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A browser over a run whose engine cannot start."""
    runs = shutil.copytree(stored, tmp_path_factory.mktemp("asked"), dirs_exist_ok=True)
    with browsed(runs / NAME, policies=Fake(no_engine)) as client:
        yield client


def form(client: TestClient, **fields: str) -> dict[str, str]:
    page = client.get(f"/run/{NAME}/ask").text
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return {"form_token": found[1], "question": "Where is Vell?", "policy": "base", **fields}


def settled(client: TestClient, address: str) -> str:
    """The page of a question when it no longer renews itself."""
    return page_when(client, address, lambda page: 'http-equiv="refresh"' not in page)


def page_when(client: TestClient, address: str, holds: Callable[[str], bool]) -> str:
    """The page as soon as its text is what the caller waits for."""
    wait_until(lambda: holds(client.get(address).text))
    return client.get(address).text


@pytest.mark.slow
def test_a_question_is_answered_by_two_policies_and_by_the_engine_that_is_open(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question starts the engine, and the next one uses it."""
    monkeypatch.chdir(tmp_path)
    overrides = settings(model, 512, "rounds=1", f"name={NAME}")
    finished_run(overrides, model, [0, 1])
    write_stored_run(tmp_path / "shown")
    desk = Desk()
    policies = RunPolicies("embedded", overrides, None)
    with browsed(tmp_path / "shown" / NAME, desk, policies=policies) as client:
        fields = form(client, policy="sft", other="round-1")
        first = client.post(f"/run/{NAME}/ask", data=fields, follow_redirects=False)
        assert first.status_code == 303
        page = settled(client, first.headers["location"])
        assert page.count("tokens written") == 2
        assert 'aria-label="Answer of Policy 0 (SFT)"' in page
        assert 'aria-label="Answer of Policy 1"' in page
        assert "The engine of Policy 0 (SFT) and Policy 1 is ready" in page
        fields["question"] = f"Who is {HOSTILE}?"
        second = client.post(f"/run/{NAME}/ask", data=fields, follow_redirects=False)
        page = settled(client, second.headers["location"])
        [asked, _] = desk.of_run(NAME)
        assert asked.progress == ["answering"]  # nothing was started
        assert "<script>alert" not in page
        assert "Earlier questions" in page
        client.post(f"/run/{NAME}/ask/end", data=fields)
        wait_until(lambda: desk.open is None)


def test_test_questions_of_the_run_fill_the_form(client: TestClient) -> None:
    page = client.get(f"/run/{NAME}/ask").text
    [link] = re.findall(rf'href="(/run/{NAME}/ask\?question=[^"]*)"', page)  # all are the same text
    filled = client.get(link).text
    assert "required>Which country is the city of Vell in?</textarea>" in filled


def test_an_engine_that_cannot_start_is_one_sentence_and_the_question_stays(
    client: TestClient,
) -> None:
    sent = client.post(f"/run/{NAME}/ask", data=form(client), follow_redirects=False)
    page = settled(client, sent.headers["location"])
    assert "vLLM cannot start: &lt;script&gt;" in page
    assert ">Where is Vell?</textarea>" in page
    assert "no policy is trained" in page
    assert "Traceback" not in page


@pytest.mark.parametrize(
    ("fields", "status", "problem"),
    [
        ({"form_token": "wrong"}, 403, "reload its page"),
        ({"question": "  "}, 400, "the question is empty"),
        ({"question": "x" * (LONGEST_QUESTION + 1)}, 400, "20,001 characters"),
        ({"question": "x" * LONGEST}, 413, "longer than"),
        ({"policy": "/etc"}, 400, "there is no policy"),
        ({"policy": ""}, 400, "no policy is chosen"),
        ({str(n): "" for n in range(9)}, 400, "the form cannot be read"),
    ],
)
def test_a_form_that_cannot_be_taken_is_refused_with_a_sentence(
    client: TestClient, fields: dict[str, str], status: int, problem: str
) -> None:
    response = client.post(f"/run/{NAME}/ask", data=form(client, **fields))
    assert (response.status_code, problem in response.text) == (status, True)


def test_forms_of_other_sites_and_other_bodies_are_refused(client: TestClient) -> None:
    fields = form(client)
    address = f"/run/{NAME}/ask"
    for site in ("cross-site", "same-site"):
        response = client.post(address, data=fields, headers={"sec-fetch-site": site})
        assert response.status_code == 403
    assert client.post(address, json=fields).status_code == 415
    assert client.post(address, data=fields, headers={"origin": "https://evil"}).status_code == 403
    page = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get(address, headers=page).status_code == 403
    assert client.get(address, headers=page | {"sec-fetch-mode": "navigate"}).status_code == 200
    null = {"origin": "null"}  # sent by web browsers with forms of pages that send no referrer
    assert client.post(address, data=fields, headers=null).status_code == 200
    assert client.post(address, content=b"\xff", headers=FORM).status_code == 400
    assert client.post(address, content=b"question=%ff", headers=FORM).status_code == 400
    assert client.post(f"/run/{NAME}/ask/end", data={"form_token": ""}).status_code == 403
    assert client.post(address, data=fields, headers={"host": "evil.example"}).status_code == 421


FORM = {"content-type": "application/x-www-form-urlencoded"}


def test_progress_is_shown_and_only_few_questions_may_wait(runs: Path) -> None:
    free = threading.Event()

    def slow(tell: Tell) -> Iterator[Sequence[Any]]:
        tell("the engine waits for 1 GPU: another run on this machine holds 0")
        free.wait(LIMIT)
        yield ()

    with browsed(runs / NAME, policies=Fake(slow)) as client:
        fields = form(client)
        sent = client.post(f"/run/{NAME}/ask", data=fields, follow_redirects=False)
        page = page_when(
            client,
            sent.headers["location"],
            lambda page: "waits for 1 GPU: another run on this machine holds 0" in page,
        )
        assert 'http-equiv="refresh"' in page
        for _ in range(3):
            client.post(f"/run/{NAME}/ask", data=fields, follow_redirects=False)
        refused = client.post(f"/run/{NAME}/ask", data=fields)
        assert refused.status_code == 400
        assert "4 questions wait for the engine" in refused.text
        free.set()


def fails_to_end(_: Tell) -> Iterator[Sequence[Any]]:
    yield ()
    raise OSError("no space left")


def exits(_: Tell) -> Iterator[Sequence[Any]]:
    raise SystemExit
    yield ()


@pytest.mark.parametrize("failing", [fails_to_end, exits])
def test_questions_are_answered_after_an_engine_that_fails_to_end_or_exits(failing: Any) -> None:
    desk = Desk()
    question = question_record("Where is Vell?")
    before = desk.ask(NAME, question, ["base"], Fake(failing))
    wait_until(lambda: before.ended)
    desk.end()
    after = desk.ask(NAME, question, ["base"], Fake(fails_to_end))
    wait_until(lambda: after.ended)
    assert after.problem == ""
    desk.close()


class Refusing:
    """A policy's process that answers each question with ``error``; it has ended by one of the engine."""

    name = "base"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.failure = error if isinstance(error, EngineError) else None

    def ask(self, question: Question) -> Future[Answered]:
        future: Future[Answered] = Future()
        future.set_exception(self.error)
        return future


@pytest.mark.parametrize(
    ("error", "made", "engines"),
    [
        (InputError("the prompt is too long"), (1, 1, 1), [1, 1, 1]),
        (EngineError("it ended"), (1, 1, 1), [1, 2, 3]),
        (InputError("the prompt is too long"), (1, 2, 2), [1, 2, 2]),  # the policy was made again
    ],
)
def test_an_engine_stays_open_until_it_ends_or_its_policy_is_made_again(
    error: Exception, made: Sequence[int], engines: list[int]
) -> None:
    """An engine takes minutes to start, and no refused question ends it."""
    started: list[Refusing] = []

    def engine(_: Tell) -> Iterator[Sequence[Any]]:
        started.append(Refusing(error))
        yield started[-1:]

    desk, policies, counts = Desk(), Fake(engine), []
    for version in made:
        policies.made = lambda names, version=version: version  # type: ignore[method-assign,misc]
        asked = desk.ask(NAME, question_record("Where is Vell?"), ["round-1"], policies)
        wait_until(lambda asked=asked: asked.ended)  # type: ignore[misc]
        assert asked.problem == str(error)
        counts.append(len(started))
    assert counts == engines
    desk.close()


def test_the_time_of_a_policy_tells_that_it_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "0123456789abcdef"
    output.mkdir()
    (output / "manifest.json").write_text("{}")
    found = {"base": None, "round-1": output}
    monkeypatch.setattr(
        "pipeline.serving.named_policies.find_policy",
        lambda task, name: NamedPolicy(name, found[name], name),
    )
    policies = RunPolicies("embedded", (), None)
    before = policies.made(["base", "round-1"])
    assert before == policies.made(["base", "round-1"])
    os.utime(output / "manifest.json", ns=(1, 1))
    assert before != policies.made(["base", "round-1"])
    assert policies.made(["base"]) == []


class Broken(Fake):
    """Policies whose names cannot be read: reading them raises an unexpected error."""

    def names(self) -> tuple[list[str], str]:
        raise LookupError("no such row")


def test_an_unexpected_error_is_a_page_and_the_service_goes_on(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with browsed(runs / NAME, policies=Broken(no_engine)) as client:
        answer = client.get(f"/run/{NAME}/ask")
        assert answer.status_code == 500
        assert "the service failed at this request (LookupError)" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert client.get(f"/run/{NAME}/").status_code == 200
    assert len([record for record in caplog.records if "LookupError" in record.getMessage()]) == 1


def test_a_run_without_a_configuration_says_how_to_ask_it(runs: Path) -> None:
    with browsed(runs / NAME) as client:
        page = client.get(f"/run/{NAME}/ask").text
        assert "has no config.yaml" in page
        assert "<textarea" not in page


def test_new_outputs_are_announced(runs: Path) -> None:
    with browsed(runs / NAME) as client:
        assert "has new outputs" not in client.get(f"/run/{NAME}/").text
        write_stored_run(runs, "later")
        (runs / "later" / "store" / "pair" / "later-p1").rename(
            runs / NAME / "store" / "pair" / "later-p1"
        )
        assert "The run has new outputs" in client.get(f"/run/{NAME}/").text


def test_the_folder_of_a_copied_run_does_not_offer_the_policies_of_the_original(
    runs: Path,
) -> None:
    overrides = (f"runs_dir={runs}", f"name={NAME}")
    task = task_for("report", "embedded", overrides)
    shutil.copytree(write_resolved(task.settings).parent, runs / "copy")
    other = task_for("report", "embedded", (f"runs_dir={runs}", "name=another"))
    before = set((runs / NAME).rglob("*"))
    app = create_app(open_site(other))
    with TestClient(app, base_url="http://127.0.0.1:8766") as client:
        assert "<textarea" in client.get(f"/run/{NAME}/ask").text
        page = client.get("/run/copy/ask").text
        assert "<textarea" not in page
        assert f"is the configuration of another run ({runs / NAME});" in page
        fields = form(client)
        refused = client.post("/run/copy/ask", data=fields)
        assert refused.status_code == 400
        assert "is the configuration of another run" in refused.text
    # docs/look.md: a browser writes one file to the store of a run
    assert set((runs / NAME).rglob("*")) - before == {runs / NAME / "store" / ".hashes.json"}
