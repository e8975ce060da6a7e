"""``steep browse --export``: pairs with their texts, steps and rewards in one HTML file.

Input: an open run and the filters of the page of pairs. Output: one file without a script or a link
to anything outside it. Its content policy admits only its own style.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pipeline.browse import views
from pipeline.browse.figures import category_bars
from pipeline.browse.filters import PAIRS
from pipeline.browse.rendering import KIND_MEANINGS, render, stylesheet
from pipeline.browse.site import OpenRun
from pipeline.core.atomic import text_output
from pipeline.core.errors import InputError


def export_pairs(run: OpenRun, path: Path, filter: str, limit: int) -> int:
    """Write up to ``limit`` pairs to ``path`` and return their number.

    ``filter`` is the query string of the page of pairs, such as ``kind=hard&q=river``. Without an
    order in it, the first pairs of every round and kind come first. Raises InputError when it is
    malformed or no pair matches; nothing is written then.
    """
    try:
        given = dict(parse_qsl(filter.removeprefix("?"), strict_parsing=bool(filter)))
    except ValueError:
        raise InputError(
            f"--filter is {filter!r:.80}; expected name=value, several joined by &"
        ) from None
    filters = run.queries.parse(PAIRS, given)
    total = run.queries.count(PAIRS, filters)
    if not total:
        if filter:
            raise InputError(f"no pair of run {run.name} matches {filter!r:.80}")
        raise InputError(
            f"run {run.name} has no pairs; make them with `steep run pair`, or read in "
            "funnel.json of a finished stage pair why it found none"
        )
    rows = run.queries.first_pairs(filters, limit)
    pages = [_pair(run, row["group"], row["row"]) for row in rows]
    facets = run.queries.facets(PAIRS, filters)
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(_inline(style).encode()).digest()).decode()
    page = render(
        "export.html.j2",
        run=run,
        style=_inline(style),
        digest=digest,
        filter=filter,
        total=total,
        pages=pages,
        kinds=category_bars(facets.get("kind", {}), lambda _: "", KIND_MEANINGS),
        datasets=category_bars(facets.get("dataset", {}), lambda _: ""),
    )
    with text_output(path) as write:
        write(page)
    return len(rows)


def _inline(style: str) -> str:
    """The style as the page contains it, on separate lines."""
    return f"\n{style}\n"


def _pair(run: OpenRun, group: str, row: int) -> dict[str, Any]:
    page = views.pair(run, group, row, {})
    if page is None:
        raise InputError(f"{run.name}: {group} has no pair in row {row}; the run has changed")
    return page
