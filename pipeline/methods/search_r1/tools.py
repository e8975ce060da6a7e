"""Search-R1's search as a tool, and the step that a call makes."""

from __future__ import annotations

from pipeline.core.records import Step
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.document_lines import parse_documents

TOOLS = ToolFormat(
    search_tool("search", "Search the collection for passages."),
    "subquery",
    lambda each: Step(
        subquery=each.query,
        context=parse_documents(each.result),
        summary=each.after,
        think=each.before,
    ),
)
