"""Fills the templates of the browser.

Every value is escaped, and invisible control characters are written out. Pages have no inline
script and no inline style, because the content policy refuses both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pipeline.core.text import one_line
from pipeline.evaluation.failures import LEGEND
from pipeline.evaluation.policy_names import policy_title
from pipeline.look.report.html_pages import TEMPLATES as REPORT_TEMPLATES
from pipeline.look.report.html_pages import page_environment
from pipeline.pairs.select import BINS, KIND_MEANINGS

HERE = Path(__file__).parent
_STYLES = (REPORT_TEMPLATES / "report.css.j2", HERE / "static" / "browse.css")

BIN_MEANINGS: Mapping[str, str] = {str(name): meaning for name, meaning in BINS.items()}
FAILURE_MEANINGS = {mode.value: meaning for mode, meaning in LEGEND.items()}


@cache
def stylesheet() -> str:
    """The style of the report with the additions of the browser."""
    return "\n".join(path.read_text(encoding="utf-8") for path in _STYLES)


@cache
def script() -> str:
    """The keyboard shortcuts."""
    return (HERE / "static" / "browse.js").read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    environment = page_environment(HERE / "templates")
    environment.filters |= {
        "value": _value,
        "policy": policy_title,
        "short": one_line,
        "path": lambda value: quote(str(value), safe=""),
        "words": lambda value: str(value).replace("_", " ").replace("-", " "),
    }
    environment.globals |= {
        "query": lambda **values: "?" + urlencode(values),
        "bin_meanings": BIN_MEANINGS,
        "failure_meanings": FAILURE_MEANINGS,
        "kind_meanings": KIND_MEANINGS,
    }
    return environment


def render(template: str, **values: Any) -> str:
    """The page of a template."""
    text: str = _environment().get_template(template).render(**values)
    return text


def _value(value: Any) -> str:
    """A number with up to three decimals; a dash for a missing one."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".").replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)
