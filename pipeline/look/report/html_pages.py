"""The Jinja environment of HTML pages with untrusted text: the report and ``steep browse``.

Every value is escaped, and invisible controls in it are written out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
BROWSER_LINKS = "<!-- links of steep browse -->"  # in the report; the browser replaces it


def page_environment(templates: Path) -> Environment:
    """An environment of the templates in a directory; an undefined variable is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: f"{value:,.0f}"
    return environment


def _visible_value(value: object) -> object:
    """The value of a template expression with its controls written out; markup is unchanged."""
    from markupsafe import Markup

    return value if isinstance(value, Markup | int | float) else visible(str(value))
