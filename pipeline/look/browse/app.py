"""The web application of ``steep browse``: addresses, and the pages that answer them.

Pages answer GET and change nothing. Two forms answer POST: a question to a policy, and the end of
its engine (`pipeline.look.browse.security` guards them). Impossible filters are status 400, absent
records 404, files of a run that cannot be read 500; each is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pipeline.core.errors import InputError, SteepError
from pipeline.knowledge.retrieval.remote import guard
from pipeline.look.browse import views
from pipeline.look.browse.asking import Asked, Desk
from pipeline.look.browse.compare import Side, comparison, selection, side
from pipeline.look.browse.filters import PAIRS, TRAJECTORIES
from pipeline.look.browse.rendering import render, script, stylesheet
from pipeline.look.browse.security import FORM_TYPE, LONGEST, WRITTEN_POLICY, Form, Forms, Guard
from pipeline.look.browse.site import OpenRun, Site
from pipeline.look.report.html_pages import BROWSER_LINKS
from pipeline.rollout.answering import question_record

_RUN = "/run/{name}"
# The tab that is marked on each page without its own tab.
_TABS = {"pair": "pairs", "trajectory": "trajectories", "versus": "compare"}
router = APIRouter()


def create_app(site: Site, token: str | None = None, desk: Desk | None = None) -> FastAPI:
    """The application over the runs of ``site``; with ``token`` every request needs it.

    ``desk`` takes questions to policies; the caller closes it.
    """
    app = FastAPI(openapi_url=None)
    app.state.site, app.state.desk, app.state.forms = site, desk or Desk(), Forms()
    app.state.traffic = guard.Traffic()

    def answer(problem: str, status: int) -> Response:
        page = render("error.html.j2", problem=problem, status=status, runs=site.names)
        return HTMLResponse(page, status)

    app.add_middleware(
        guard.Guard, traffic=app.state.traffic, body_type=FORM_TYPE, most=LONGEST, pages=True,
        shown=lambda refusal: answer(str(refusal), refusal.status),
    )  # fmt: skip
    app.middleware("http")(Guard(token))
    app.include_router(router)

    @app.exception_handler(HTTPException)
    def refused(_: Request, error: HTTPException) -> Response:
        return answer(str(error.detail), error.status_code)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        return answer("a part of this address must be a number, and is not", 404)

    @app.exception_handler(SteepError)
    def failed(_: Request, error: SteepError) -> Response:
        return answer(str(error), 400 if isinstance(error, InputError) else 500)

    return app


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def _run(name: str, request: Request) -> OpenRun:
    return _opened(_site(request), name)


async def _form(request: Request) -> Form:
    forms: Forms = request.app.state.forms
    return await forms.read(request)


Runs: TypeAlias = Annotated[Site, Depends(_site)]
Run: TypeAlias = Annotated[OpenRun, Depends(_run)]
Filled: TypeAlias = Annotated[Form, Depends(_form)]


def _opened(site: Site, name: str) -> OpenRun:
    run = site.run(name)
    if run is None:
        raise HTTPException(404, f"there is no run {name!r:.80}")
    return run


def _home(run: OpenRun) -> str:
    return f"/run/{quote(run.name, safe='')}"


def _page(
    request: Request, run: OpenRun, template: str, values: dict[str, Any] | None, missing: str = ""
) -> Response:
    """A page with the values of its template; None is status 404 with ``missing``."""
    if values is None:
        raise HTTPException(404, missing)
    common = {
        "run": run,
        "home": _home(run),
        "tab": _TABS.get(template, template),
        "runs": _site(request).names,
        "form_token": request.app.state.forms.token,
    }
    return HTMLResponse(render(f"{template}.html.j2", **common, **values))


@router.get("/favicon.ico")
def icon() -> Response:
    return Response(status_code=204)


@router.get("/static/browse.css")
def style() -> Response:
    return Response(stylesheet(), media_type="text/css")


@router.get("/static/browse.js")
def keys() -> Response:
    return Response(script(), media_type="text/javascript")


@router.get("/")
def start(runs: Runs) -> Response:
    return RedirectResponse(f"/run/{quote(runs.names[0], safe='')}/", 303)


@router.get(f"{_RUN}/")
def start_of_run(run: Run) -> Response:
    """The list of pairs, or of trajectories in a run without pairs."""
    has_pairs = any(group.pairs for group in run.sources.groups)
    first = "pairs" if has_pairs else "trajectories"
    return RedirectResponse(f"{_home(run)}/{first}", 303)


@router.get(f"{_RUN}/pairs")
def pairs(run: Run, request: Request) -> Response:
    return _page(request, run, "pairs", views.listing(run, PAIRS, request.query_params))


@router.get(f"{_RUN}/trajectories")
def trajectories(run: Run, request: Request) -> Response:
    values = views.listing(run, TRAJECTORIES, request.query_params)
    return _page(request, run, "trajectories", values)


@router.get(f"{_RUN}/pair/{{group}}/{{row}}")
def pair(run: Run, group: str, row: int, request: Request) -> Response:
    values = views.pair(run, group, row, request.query_params)
    return _page(request, run, "pair", values, f"{group} has no pair in row {row}")


@router.get(f"{_RUN}/trajectory/{{group}}/{{row}}")
def trajectory(run: Run, group: str, row: int, request: Request) -> Response:
    values = views.trajectory(run, group, row, request.query_params)
    return _page(request, run, "trajectory", values, f"{group} has no trajectory in row {row}")


@router.get(f"{_RUN}/call/{{group}}")
def call(run: Run, group: str, request: Request, key: str = "") -> Response:
    missing = f"{group} has no judge's call {key!r:.80}"
    return _page(request, run, "call", views.call(run, group, key), missing)


@router.get(f"{_RUN}/chunk")
def chunk(run: Run, request: Request, id: str = "") -> Response:
    return _page(
        request, run, "chunk", views.chunk(run, id), f"no passage or fact has the id {id!r:.80}"
    )


def _sides(site: Site, given: Mapping[str, str]) -> tuple[Side, Side]:
    first = _opened(site, given.get("run_a") or site.names[0])
    second = _opened(site, given.get("run_b") or first.name)
    return side(first, given.get("a", ""), 0), side(second, given.get("b", ""), 1)


@router.get("/compare")
def compare(runs: Runs, request: Request) -> Response:
    sides = _sides(runs, request.query_params)
    selected = selection(sides, request.query_params)
    values = comparison(selected, request.query_params)
    return _page(request, sides[0].run, "compare", {"sides": sides, **values})


@router.get("/compare/question")
def compare_question(runs: Runs, request: Request, id: str = "") -> Response:
    """The trajectories of one question on both sides."""
    sides = _sides(runs, request.query_params)
    values = views.versus(sides, id, selection(sides, request.query_params))
    missing = f"the question {id!r:.80} is not on both sides"
    return _page(request, sides[0].run, "versus", values, missing)


@router.get(f"{_RUN}/ask")
def ask(run: Run, request: Request, key: str = "", question: str = "") -> Response:
    """The form, filled with ``question``; links to the examples give it."""
    return _page(request, run, "ask", views.ask(run, request.app.state.desk, key, question))


@router.post(f"{_RUN}/ask")
def take(run: Run, request: Request, form: Filled) -> Response:
    asked = _take_question(run, request.app.state.desk, form)
    return RedirectResponse(f"{_home(run)}/ask?key={quote(asked.key)}", 303)


def _take_question(run: OpenRun, desk: Desk, form: Mapping[str, str]) -> Asked:
    """Give the question of the form to the desk.

    Raises InputError for an unusable question, and for a policy that the page does not offer.
    """
    question = question_record(form.get("question", ""))
    if run.policies is None:
        raise InputError(run.not_asked)
    offered, note = run.policies.names()
    names = list(dict.fromkeys(filter(None, (form.get("policy"), form.get("other")))))
    if not names:
        raise InputError("no policy is chosen; choose one")
    for name in names:
        if name not in offered:
            known = ", ".join(offered)
            raise InputError(
                f"there is no policy {name!r:.60}; expected one of {known}. {note}".strip()
            )
    return desk.ask(run.name, question, names, run.policies)


@router.post(f"{_RUN}/ask/end")
def end(run: Run, request: Request, form: Filled) -> Response:
    request.app.state.desk.end()
    return RedirectResponse(f"{_home(run)}/ask", 303)


@router.get(f"{_RUN}/report.html")
def report(run: Run) -> Response:
    """The report of a run, with links to the pages of the browser."""
    path = run.report
    if path is None:
        problem = f"run {run.name!r:.80} has no report.html yet; steep run writes it"
        raise HTTPException(404, problem)
    links = render("links.html.j2", run=run, home=_home(run))
    page = path.read_text(encoding="utf-8", errors="replace").replace(BROWSER_LINKS, links, 1)
    return HTMLResponse(page, headers={"Content-Security-Policy": WRITTEN_POLICY})
