"""The pages of ``steep browse`` over HTTP: filters, records, links between them, and bad addresses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.cli.browse import open_site
from pipeline.cli.options import Chosen
from pipeline.core.records import Step
from pipeline.look.browse.app import create_app
from pipeline.look.browse.steps import StepView, first_difference, step_views
from tests.browse.linked_pages import linked_pages
from tests.browse.stored_run import CONTROL, NAME, VERDICT, browsed, write_stored_run
from tests.smallest import small_trajectory

RUN = "/run/stored"


def get(client: TestClient, address: str, status: int = 200) -> str:
    response = client.get(RUN + address)
    assert response.status_code == status, response.text
    return response.text


def rows(page: str) -> list[str]:
    """The records that a list links to."""
    return re.findall(r'href="/run/stored/(?:pair|trajectory)/([a-z]+-\d/\d+)[?"]', page)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", ["round-1/0", "round-1/1", "round-1/2", "round-2/0", "round-2/1", "round-2/2"]),
        ("?kind=hard&dataset=nq", ["round-2/2"]),
        ("?q=alert+owned", ["round-1/0", "round-2/0"]),
        ("?q=HARBOUR", ["round-1/1", "round-1/2", "round-2/1", "round-2/2"]),
        ("?hops=3", ["round-1/1", "round-2/1"]),
        ("?verdict=over", ["round-1/0", "round-2/0"]),
        ("?term=chosen_total&from=2.4&to=2.6&kind=easy", ["round-1/2"]),
        ("?group=round-1&sort=chosen_total", ["round-1/2", "round-1/1", "round-1/0"]),
        ("?question=q1&kind=easy", ["round-1/1"]),
        ("?failure=misread&group=round-1", ["round-1/0", "round-1/1", "round-1/2"]),
    ],
)
def test_pairs_are_filtered_searched_and_sorted(
    client: TestClient, filters: str, expected: list[str]
) -> None:
    assert rows(get(client, f"/pairs{filters}")) == expected


def test_names_of_folders_are_neither_patterns_nor_columns(stored: Path, tmp_path: Path) -> None:
    write_stored_run(tmp_path / "round=7", better=True)
    run = shutil.copytree(stored / NAME, tmp_path / "round=[7]" / NAME)
    with browsed(run) as client:
        assert "10 row" in get(client, "/trajectories?correct=no")
        hard = get(client, "/pairs?kind=hard&hops=3")
        assert rows(hard) == ["round-2/1"]
        assert "<bdi>Vell</bdi>" in hard
        assert "<td>[7]</td>" not in hard
        assert "The verdict is yes." in get(client, "/call/round-1?key=key0")


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("", 22),
        ("?correct=no", 10),
        ("?bin=rejected-easy", 6),
        ("?steps_from=2", 8),
        ("?item=c1%3A1", 16),
        ("?term=term_total&from=2.75", 2),
        ("?failure=misread&group=policy-0", 2),
    ],
)
def test_trajectories_are_filtered(client: TestClient, filters: str, count: int) -> None:
    page = get(client, f"/trajectories{filters}")
    assert f"{count} row" in page
    assert len(rows(page)) == count


def test_every_link_of_the_browser_leads_to_a_page(client: TestClient) -> None:
    """Follows links from the first page, up to three of each kind: none is missing or fails."""
    kinds = linked_pages(client, most=3)
    assert kinds.keys() >= {
        "/", "/pairs", "/pair/round", "/trajectories", "/trajectory/round", "/trajectory/policy",
        "/chunk", "/call/round", "/compare", "/compare/question", "/report.html",
    }  # fmt: skip


def test_a_pair_is_explained_by_terms_outcome_and_all_samples(client: TestClient) -> None:
    page = get(client, "/pair/round-2/0")
    assert "lower than the chosen 1 by at least 0.3 (pairs.hard_margin)" in page
    assert "Each takes the trajectory with the lowest total that is left." in page
    assert "rejected in a pair: wrong answer, with q0/0@2" in page
    assert re.search(r"outcome<span[^>]*>Token F1[^<]*</span></th><td>1</td><td>0</td><td>1<", page)
    assert page.count("q0/1@2") >= 2  # rejected side, and the table of samples
    assert "over-search: yes" in page


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (0, True),  # single-hop, and the process of both sides is 0
        (1, False),  # single-hop, and the process is not 0
        (2, False),  # multi-hop, and the process is 0
    ],
)
def test_a_pair_of_a_single_hop_question_says_why_its_process_is_0(
    client: TestClient, row: int, said: bool
) -> None:
    sentence = "The process is 0 on both sides because this is a single-hop question"
    assert (sentence in get(client, f"/pair/round-1/{row}")) is said


def test_the_parsers_reason_is_shown_at_its_place_in_the_text(client: TestClient) -> None:
    for address in ("/pair/round-1/2", "/trajectory/round-1/5"):
        page = get(client, address)
        assert "expected &#39;Summary:&#39; at offset 8" in page
        assert re.search(r'class="text excerpt">Step 1:\n<mark>Important entity', page)
    assert "excerpt" not in get(client, "/pair/round-1/1")


def test_differences_between_the_sides_are_marked(client: TestClient) -> None:
    marked = re.findall(r"<mark>\s*([^<]*)</mark>", get(client, "/pair/round-1/1"))
    assert "Vell" in marked  # the answers differ


def test_roles_of_a_pair_are_those_of_the_loss(client: TestClient) -> None:
    page = get(client, "/pair/round-1/1")
    observed = "".join(re.findall(r'<span class="observed">(?:<mark>)?([^<]*)', page))
    trained = "".join(re.findall(r'<span class="trained">(?:<mark>)?([^<]*)', page))
    assert "harbour city" in observed
    assert "harbour city" not in trained
    assert "Subquery: Where is" in trained


def test_tokens_are_shown_on_demand_with_their_probability(client: TestClient) -> None:
    assert ", probability" not in get(client, "/trajectory/round-1/3")
    page = get(client, "/trajectory/round-1/3?tokens=yes")
    assert re.search(r'class="trained rare" title="id \d+, trained, probability 0\.050"', page)
    assert re.search(r'class="observed" title="id \d+, observed"', page)
    assert "probability 0.050" in get(client, "/pair/round-1/1?tokens=yes")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/pairs", [VERDICT, CONTROL]),
        (
            "/report.html",
            [f'href="{RUN}/pairs?group=round-{n}">Pairs of round {n}<' for n in (1, 2)],
        ),
        (
            "/trajectory/round-1/3",
            [
                '0.75<span class="ci">step 1',
                "Vell is in Ostar.",
                "/trajectories?question=q1",
                "/pairs?question=q1",
            ],
        ),
        ("/chunk?id=c1", ["/trajectories?item=c1", "/trajectories?item=c1%3A1"]),
        ("/chunk?id=c1%3A1", ["Passage c1", "<mark><bdi>Vell · country · Ostar</bdi></mark>"]),
        (
            "/call/round-1?key=key0",
            ["Is this needed?", "The verdict is yes.", "q0/0@1", "so the search was not needed"],
        ),
    ],
)
def test_a_page_shows_and_links_to_what_belongs_to_it(
    client: TestClient, address: str, shown: list[str]
) -> None:
    page = get(client, address)
    assert [text for text in shown if text not in page] == []


def test_the_first_step_that_differs_is_named_with_what_differs() -> None:
    steps = [StepView("Where?", [], "", "There.", [], {})] * 2
    other = steps[1]._replace(query="Who?", conclusion="Here.")
    sides = [{"side": "chosen", "steps": steps}, {"side": "rejected", "steps": [steps[0], other]}]
    assert first_difference(sides) == "step 2, in the query"
    sides[1]["steps"] = steps[:1]
    assert first_difference(sides) == "step 2, which is complete on one side only: chosen"
    assert first_difference([sides[0], sides[0]]) == ""


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (None, [{}, {}]),
        ({"steps": [{"total": 1.0}] * 2}, [{"total": 1.0}] * 2),
        ({"steps": [{"total": 1.0}]}, [{}, {}]),  # not one for each step
    ],
)
def test_a_step_has_its_reward_terms(
    rewards: dict[str, Any] | None, expected: list[dict[str, float]]
) -> None:
    trajectory = small_trajectory(steps=[Step(query="a"), Step(query="b")], rewards=rewards)
    assert [view.terms for view in step_views(trajectory)] == expected


def test_a_run_opens_with_its_pairs_and_has_its_report_beside_them(client: TestClient) -> None:
    for address in ("/", f"{RUN}/"):
        opened = client.get(address)
        assert (opened.url.path, len(rows(opened.text))) == (f"{RUN}/pairs", 6)
        assert f'href="{RUN}/report.html"' in opened.text


def test_a_run_that_only_sampled_and_evaluated_opens_with_its_trajectories(runs: Path) -> None:
    for stage in ("pair", "score", "judge", "graph", "corpus", "questions-sampling"):
        shutil.rmtree(runs / NAME / "store" / stage)
    for name in ("report.html", "report.json"):
        (runs / NAME / name).unlink()
    with browsed(runs / NAME) as client:
        opened = client.get("/")
        assert opened.url.path == f"{RUN}/trajectories"
        assert "22 rows" in opened.text
        assert "report.html" not in opened.text
        assert "steep run writes it" in get(client, "/report.html", 404)
        assert "The run has no pairs." in get(client, "/pairs")


def test_values_of_the_filters_have_their_counts_and_meanings(client: TestClient) -> None:
    page = get(client, "/trajectories?group=round-1&failure=misread")
    assert '<option value="round-1" selected>Round 1, samples of policy 0 (4)</option>' in page
    assert re.search(r'value="misread" selected title="The needed facts[^>]*>misread \(4\)', page)
    assert "<details open>" in page
    assert "<details>" in get(client, "/trajectories?group=round-1")


def test_a_round_that_was_paired_with_settings_of_another_version_opens(runs: Path) -> None:
    store = runs / NAME / "store"
    file = store / "pair" / f"{NAME}-p1" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["key"]["settings"] = {"pairs": {"limit": 3, "easy_outcome": 0.2}}
    file.write_text(json.dumps(manifest))
    with browsed(runs / NAME) as client:
        page, other = (client.get(f"/run/{NAME}/pair/round-{number}/0") for number in (1, 2))
    assert (page.status_code, other.status_code) == (200, 200)
    sentence = (
        "round 1 was paired with settings that this version of steep does not have (pairs.limit)"
    )
    assert sentence in page.text
    assert "Why these two" not in page.text
    assert "Why these two" in other.text


def test_the_report_is_served_without_scripts(client: TestClient) -> None:
    response = client.get(f"{RUN}/report.html")
    assert "color: red" in response.text
    assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert "script-src" not in response.headers["content-security-policy"]


def test_a_run_that_finishes_while_the_browser_runs_is_found(runs: Path) -> None:
    settings = (f"runs_dir={runs}", f"name={NAME}", f"cache_dir={runs}/cache")
    opened = open_site(Chosen("embedded", settings).task())
    assert opened.names == [NAME]
    with TestClient(create_app(opened), base_url="http://localhost") as client:
        assert client.get("/run/later/").status_code == 404
        (runs / "begun/store/sample/0123456789abcdef.partial").mkdir(parents=True)
        later = write_stored_run(runs, "later")
        for stage in ("sample", "score", "pair"):  # as in a run without rounds
            shutil.rmtree(later / "store" / stage)
        assert client.get("/run/later/").status_code == 200
        assert client.get("/run/begun/").status_code == 404
        assert 'href="/run/later/"' in client.get("/").text


def test_every_link_and_control_has_a_name(client: TestClient) -> None:
    for address in ("/", "/pairs", "/trajectories", "/pair/round-1/2", "/chunk?id=c1"):
        page = get(client, address)
        for attributes, content in re.findall(r"<a\b([^>]*)>(.*?)</a>", page, re.DOTALL):
            text = re.sub(r"<[^>]*>", "", content).strip()
            assert text, (address, attributes)
        for field in re.finditer(r"<(input|select)\b[^>]*>", page):
            before = page[: field.start()]
            hidden = 'type="hidden"' in field.group()
            assert hidden or before.rindex("<label") > before.rfind("</label>"), field.group()


def test_a_page_after_the_last_is_the_last(client: TestClient) -> None:
    for address in ("/pairs", "/trajectories"):
        found = rows(get(client, address))
        assert found
        assert rows(get(client, f"{address}?page=99")) == found
    compared = [client.get(f"/compare?page={page}").text for page in (1, 99)]
    assert "/compare/question" in compared[0]
    assert compared[0].count("/compare/question") == compared[1].count("/compare/question")


def test_pairs_without_verdicts_are_not_faultless(client: TestClient, runs: Path) -> None:
    assert len(rows(get(client, "/pairs?verdict=faultless"))) == 4
    shutil.rmtree(runs / NAME / "store/judge")
    with browsed(runs / NAME) as unjudged:
        assert rows(get(unjudged, "/pairs?verdict=faultless")) == []


@pytest.mark.parametrize(
    ("address", "status", "problem"),
    [
        ("/pairs?colour=red", 400, "unknown filter"),
        ("/pairs?from=1", 400, "from has no term"),
        ("/pairs?steps_from=many", 400, "expected a number"),
        ("/pairs?page=0", 400, "expected a number from 1"),
        ("/pairs?sort=question%22--", 400, "sort is"),
        ("/pairs?order=ascending", 400, "expected asc or desc"),
        ("/pairs?q=%3F%3F%00", 400, "expected words of letters or digits"),
        ("/trajectories?correct=perhaps", 400, "expected yes or no"),
        ("/pair/round-1/99", 404, "no pair in row 99"),
        ("/pair/round-9/0", 404, "no pair"),
        ("/trajectory/round-1/first", 404, "must be a number"),
        (f"/trajectory/round-1/{9**60}", 404, "no trajectory in row"),
        (f"/pair/round-1/{9**60}", 404, "no pair in row"),
        ("/chunk?id=absent", 404, "no passage or fact"),
        ("/call/round-1?key=absent", 404, "no judge"),
    ],
)  # fmt: skip
def test_a_bad_address_is_one_sentence(
    client: TestClient, address: str, status: int, problem: str
) -> None:
    page = get(client, address, status)
    assert problem in page.replace("&#39;", "'")
    assert "Traceback" not in page


def test_words_of_a_search_are_data_and_not_sql(client: TestClient) -> None:
    assert "0 rows" in get(client, "/pairs?q=zzz'%20OR%201=1--")
    assert "0 rows" in get(client, "/pairs?dataset=nq'%20OR%20'1'='1")


POLICIES = "run_a=stored&a=policy-0&run_b=stored&b=policy-1"
BACKWARDS = "run_a=stored&a=policy-1&run_b=stored&b=policy-0"
ROUNDS = "run_a=stored&a=round-1&run_b=stored&b=round-2"
OTHER_WORLD = "run_a=stored&a=policy-0&run_b=other&b=policy-0"  # its t0 has other gold answers


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        (f"{POLICIES}&outcome=won", ["t1", "t2"]),
        ("outcome=won", ["t1", "t2"]),  # by default of the first and the last policy
        (f"{BACKWARDS}&outcome=lost", ["t1", "t2"]),
        (f"{POLICIES}&failure=misread", ["t1", "t2"]),
        # Trajectories of two rounds have other ids, so all three questions with pairs changed.
        (f"{ROUNDS}&pairs=changed", ["q0", "q1", "q2"]),
        (f"{ROUNDS}&pairs=none", ["q3"]),
        ("run_a=stored&a=round-1&run_b=stored&b=round-1&pairs=kept", ["q0", "q1", "q2"]),
        (OTHER_WORLD, ["t1", "t2"]),
    ],
)
def test_questions_are_compared_by_outcome_failure_and_pairs(
    client: TestClient, query: str, ids: list[str]
) -> None:
    page = client.get(f"/compare?{query}").text
    assert re.findall(r'href="/compare/question\?[^"]*id=(\w+)"', page) == ids


def test_a_question_won_opens_both_trajectories_side_by_side(client: TestClient) -> None:
    page = client.get("/compare?outcome=won").text
    assert re.search(r'value="won" selected title="a larger share[^>]*>won \(2\)', page)
    link = re.findall(r'href="(/compare/question\?[^"]*id=t1)"', page)[0].replace("&amp;", "&")
    page = client.get(link).text
    assert "/trajectory/policy-0/1" in page
    assert "/trajectory/policy-1/1" in page
    assert re.search(r"<bdi>Vell</bdi></strong> · <strong>misread</strong>", page)
    assert re.search(r"<bdi>Ostar</bdi></strong> · <strong>right</strong>", page)
    assert "No step differs." in page
    assert re.search(r'rel="next" href="[^"]*id=t2"', page)
    assert client.get(f"/compare/question?{OTHER_WORLD}&id=t0").status_code == 404


def test_two_runs_are_compared(client: TestClient) -> None:
    page = client.get("/compare?run_a=stored&a=round-2&run_b=other&b=round-2").text
    assert page.count('class="won"') == 4
    assert "1 of 2" in page
    assert "2 of 2" in page


@pytest.mark.parametrize(
    ("query", "known"), [("run_a=stored&a=round-7", "round-1"), ("failure=tired", "right")]
)
def test_an_unknown_side_or_failure_mode_of_a_comparison_is_refused(
    client: TestClient, query: str, known: str
) -> None:
    refused = client.get(f"/compare?{query}")
    assert (refused.status_code, f"expected one of {known}" in refused.text) == (400, True)


def test_pairs_outlive_their_trajectories(runs: Path) -> None:
    """After the samples of a round were removed, its pairs keep their texts and rewards."""
    for stage in ("score", "sample", "corpus", "graph"):
        shutil.rmtree(runs / NAME / "store" / stage)
    with browsed(runs / NAME) as client:
        assert "6 rows" in get(client, "/pairs")
        assert "Which country is the city of Vell in?" in get(client, "/pairs")
        page = get(client, "/pair/round-1/1")
        assert "The trajectory is no longer in the run." in page
        assert "no config.yaml that names its base model" in page
        assert "Vell is a harbour city" in page
        for query in ("", "trajectories", "pairs?q=harbour", "pairs?term=margin_total&from=0"):
            get(client, f"/{query}")
        get(client, "/trajectory/round-1/0", 404)
        assert "names its base model" in get(client, "/pair/round-1/1?tokens=yes", 400)
