"""Search-R1's search as a tool, and the step that a call makes."""

from __future__ import annotations

from pipeline.core.records import Step
from pipeline.rollout.conversations.steps import ToolFormat, search_tool
from pipeline.rollout.grammars.document_lines import SEARCH_R1, DocumentLayout, parse_documents


def tool_format(layout: DocumentLayout) -> ToolFormat:
    """The tool, whose results have ``layout``."""
    return ToolFormat(
        search_tool("search", "Search the collection for passages."),
        "subquery",
        lambda each: Step(
            subquery=each.query,
            context=parse_documents(each.result, layout),
            summary=each.after,
            think=each.before,
        ),
    )


TOOLS = tool_format(SEARCH_R1)
