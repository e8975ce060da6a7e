"""ProGraph-R1's search as a tool, and the step that a call makes."""

from __future__ import annotations

from pipeline.core.records import Step
from pipeline.methods.prograph.grammar import parse_items
from pipeline.rollout.conversations.steps import ToolFormat, search_tool

TOOLS = ToolFormat(
    search_tool("search_graph", "Search the hypergraph for facts."),
    "query",
    lambda each: Step(
        think=each.before,
        query=each.query,
        knowledge=each.result,
        context=parse_items(each.result),
    ),
    answer_step=True,
)
