"""Makes plain text of links to the log, which is in the repository and not in the site."""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"\[([^]]+)\]\((?:\.\./)*(log(?:/[\w-]+)?\.md)(?:#[\w-]+)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Change the text of a page; mkdocs calls this hook (``mkdocs.yml``)."""
    return _LINK.sub(_without_link, markdown)


def _without_link(link: re.Match[str]) -> str:
    text, file = link.groups()
    return text if text in ("log", "predicted") else f"{text} (`docs/{file}`)"
