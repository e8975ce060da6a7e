"""R1-Searcher's search as a tool: Search-R1's, with its own layout of documents."""

from __future__ import annotations

from pipeline.methods.r1_searcher.grammar import GRAMMAR
from pipeline.methods.search_r1.tools import tool_format

TOOLS = tool_format(GRAMMAR.layout)
