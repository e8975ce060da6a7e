"""The web application of ``steep browse``: addresses, and the pages that answer them.

Pages answer GET and change nothing. Three forms answer POST: a question to a policy, the end of its
engine, and the new outputs of a run (`pipeline.browse.forms` guards them). Impossible filters are
status 400, absent records 404, files of a run that cannot be read 500; each is one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from pipeline.browse import views
from pipeline.browse.asking import Desk
from pipeline.browse.compare import Comparer, Side, compare, selection, side
from pipeline.browse.compare import comparison as comparison_of
from pipeline.browse.filters import PAIRS, TRAJECTORIES
from pipeline.browse.forms import Form, Forms, take_question
from pipeline.browse.home import home
from pipeline.browse.rendering import render, script, stylesheet
from pipeline.browse.security import WRITTEN_POLICY, Guard
from pipeline.browse.site import OpenRun, Site
from pipeline.core.errors import InputError, SteepError
from pipeline.pairs.anchors import EXPORT

_RUN = "/run/{name}"
# The tab that is marked on each page without its own tab.
_TABS = {
    "pair": "pairs", "trajectory": "trajectories", "graph": "trajectories", "versus": "compare",
}  # fmt: skip


async def _read_form(request: Request) -> Form:
    forms: Forms = request.app.state.forms
    return await forms.read(request)


Filled: TypeAlias = Annotated[Form, Depends(_read_form)]


def create_app(site: Site, token: str | None = None, desk: Desk | None = None) -> FastAPI:
    """The application over the runs of ``site``; with ``token`` every request needs it.

    ``desk`` takes questions to policies; the caller closes it.
    """
    app = FastAPI(openapi_url=None)
    forms = app.state.forms = Forms()
    # the filters of a comparison's page need the same comparison again
    app.state.comparer = lru_cache(maxsize=4)(compare)
    app.middleware("http")(Guard(token))
    _add_errors(app, site)
    _add_files(app)
    _add_written(app, site)
    _add_lists(app, site)
    _add_comparison(app, site)
    _add_records(app, site)
    _add_knowledge(app, site)
    _add_asking(app, site, forms, desk or Desk())
    _add_reopening(app, site, forms)
    return app


def warm_up(app: FastAPI, site: Site) -> None:
    """Make the pages that are slow the first time: a comparison and a pair of the first run.

    A run whose files cannot be read is skipped: its pages name the problem.
    """
    comparer: Comparer = app.state.comparer
    with suppress(SteepError):
        run = site.first
        comparer(side(run, "", 0), side(run, "", 1))
        for group in reversed(run.sources.groups):
            values = views.pair(run, group.key, 0, {})
            if values is not None:
                _page(site, run, "pair", values)
                break


def _open(site: Site, name: str) -> OpenRun:
    run = site.run(name)
    if run is None:
        raise HTTPException(404, f"there is no run {name!r:.80}")
    return run


def _page(
    site: Site, run: OpenRun, template: str, values: dict[str, Any] | None, missing: str = ""
) -> Response:
    if values is None:
        raise HTTPException(404, missing)
    common = {
        "run": run,
        "home": f"/run/{quote(run.name, safe='')}",
        "tab": _TABS.get(template, template),
        "runs": site.names,
        "stale": run.sources.stale,
        "has_new_outputs": run.has_new_outputs,
    }
    return HTMLResponse(render(f"{template}.html.j2", **common, **values))


def _add_errors(app: FastAPI, site: Site) -> None:
    def answer(problem: str, status: int) -> Response:
        page = render("error.html.j2", problem=problem, status=status, runs=site.names)
        return HTMLResponse(page, status)

    @app.exception_handler(HTTPException)
    def refused(_: Request, error: HTTPException) -> Response:
        return answer(str(error.detail), error.status_code)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        return answer("this address has a part that is not a number where one is expected", 404)

    @app.exception_handler(SteepError)
    def failed(_: Request, error: SteepError) -> Response:
        return answer(str(error), 400 if isinstance(error, InputError) else 500)


def _add_files(app: FastAPI) -> None:
    def add(path: str, kind: str, text: Callable[[], str]) -> None:
        @app.get(path)
        def file() -> Response:
            return Response(text(), media_type=kind)

    @app.get("/favicon.ico")
    def icon() -> Response:
        return Response(status_code=204)

    add("/static/browse.css", "text/css", stylesheet)
    add("/static/browse.js", "text/javascript", script)


def _add_written(app: FastAPI, site: Site) -> None:
    """The report of a run, and the pairs beside it to which the report links."""

    def add(file: str, command: str) -> None:
        @app.get(f"{_RUN}/{file}")
        def written(name: str) -> Response:
            run = _open(site, name)
            path = run.written(file)
            if path is None:
                raise HTTPException(404, f"run {name!r:.80} has no {file} yet; {command} writes it")
            return FileResponse(path, headers={"Content-Security-Policy": WRITTEN_POLICY})

    add("report.html", "steep run")
    add(EXPORT, f"steep browse --export {EXPORT}, in the directory of the run,")


def _add_lists(app: FastAPI, site: Site) -> None:
    @app.get("/")
    def start() -> Response:
        return RedirectResponse(f"/run/{quote(site.names[0], safe='')}/", 303)

    @app.get(f"{_RUN}/")
    def start_of_run(name: str) -> Response:
        run = _open(site, name)
        return _page(site, run, "home", home(run))

    @app.get(f"{_RUN}/pairs")
    def pairs(name: str, request: Request) -> Response:
        run = _open(site, name)
        return _page(site, run, "pairs", views.listing(run, PAIRS, request.query_params))

    @app.get(f"{_RUN}/trajectories")
    def trajectories(name: str, request: Request) -> Response:
        run = _open(site, name)
        values = views.listing(run, TRAJECTORIES, request.query_params)
        return _page(site, run, "trajectories", values)


def _add_comparison(app: FastAPI, site: Site) -> None:
    comparer: Comparer = app.state.comparer

    def sides(given: Mapping[str, str]) -> tuple[Side, Side]:
        first = _open(site, given.get("run_a") or site.names[0])
        second = _open(site, given.get("run_b") or first.name)
        return side(first, given.get("a", ""), 0), side(second, given.get("b", ""), 1)

    @app.get("/compare")
    def comparison(request: Request) -> Response:
        first, second = sides(request.query_params)
        selected = selection(first, second, request.query_params, comparer)
        values = comparison_of(selected, request.query_params)
        return _page(site, first.run, "compare", {"first": first, "second": second, **values})

    @app.get("/compare/question")
    def question(request: Request, id: str = "") -> Response:
        """The trajectories of one question on both sides."""
        first, second = sides(request.query_params)
        selected = selection(first, second, request.query_params, comparer)
        ids = [row.question_id for row in selected.shown]
        place = ids.index(id) if id in ids else None
        outcome = next((row.outcome for row in selected.rows if row.question_id == id), None)
        values = views.versus((first, second), id, outcome)
        around = {
            "filters": selected.filters,
            "before": ids[place - 1] if place else None,
            "after": None if place is None else next(iter(ids[place + 1 :]), None),
        }
        missing = f"the question {id!r:.80} is not on both sides"
        return _page(site, first.run, "versus", values and {**values, **around}, missing)


def _add_records(app: FastAPI, site: Site) -> None:
    @app.get(f"{_RUN}/pair/{{group}}/{{row}}")
    def pair(name: str, group: str, row: int, request: Request) -> Response:
        run = _open(site, name)
        values = views.pair(run, group, row, request.query_params)
        return _page(site, run, "pair", values, f"{group} has no pair in row {row}")

    @app.get(f"{_RUN}/trajectory/{{group}}/{{row}}")
    def trajectory(name: str, group: str, row: int, request: Request) -> Response:
        run = _open(site, name)
        values = views.trajectory(run, group, row, request.query_params)
        return _page(site, run, "trajectory", values, f"{group} has no trajectory in row {row}")

    @app.get(f"{_RUN}/graph/{{group}}/{{row}}/{{step}}")
    def graph(name: str, group: str, row: int, step: int) -> Response:
        run = _open(site, name)
        values = views.graph(run, group, row, step)
        return _page(site, run, "graph", values, f"{group} has no step {step} in row {row}")

    @app.get(f"{_RUN}/question")
    def question(name: str, id: str = "") -> Response:
        run = _open(site, name)
        values = views.question(run, id)
        return _page(site, run, "question", values, f"no trajectory has the question {id!r:.80}")

    @app.get(f"{_RUN}/call/{{group}}")
    def call(name: str, group: str, key: str = "") -> Response:
        run = _open(site, name)
        values = views.call(run, group, key)
        return _page(site, run, "call", values, f"{group} has no judge's call {key!r:.80}")


def _add_asking(app: FastAPI, site: Site, forms: Forms, desk: Desk) -> None:
    @app.get(f"{_RUN}/ask")
    def page(name: str, key: str = "") -> Response:
        run = _open(site, name)
        return _page(site, run, "ask", {**views.ask(run, desk, key), "form_token": forms.token})

    @app.post(f"{_RUN}/ask")
    def question(name: str, form: Filled) -> Response:
        run = _open(site, name)
        asked = take_question(run, desk, form)
        return RedirectResponse(f"/run/{quote(name, safe='')}/ask?key={quote(asked.key)}", 303)

    @app.post(f"{_RUN}/ask/end")
    def end(name: str, form: Filled) -> Response:
        _open(site, name)
        desk.end()
        return RedirectResponse(f"/run/{quote(name, safe='')}/ask", 303)


def _add_reopening(app: FastAPI, site: Site, forms: Forms) -> None:
    @app.get(f"{_RUN}/new")
    def page(name: str) -> Response:
        return _page(site, _open(site, name), "new", {"form_token": forms.token})

    @app.post(f"{_RUN}/new")
    def reopen(name: str, form: Filled) -> Response:
        if site.reopen(name) is None:
            raise HTTPException(404, f"there is no run {name!r:.80}")
        return RedirectResponse(f"/run/{quote(name, safe='')}/", 303)


def _add_knowledge(app: FastAPI, site: Site) -> None:
    @app.get(f"{_RUN}/chunk")
    def chunk(name: str, id: str = "") -> Response:
        run = _open(site, name)
        return _page(site, run, "chunk", views.chunk(run, id), f"no passage has the id {id!r:.80}")

    @app.get(f"{_RUN}/fact")
    def fact(name: str, id: str = "") -> Response:
        run = _open(site, name)
        return _page(site, run, "fact", views.fact(run, id), f"no fact has the id {id!r:.80}")
