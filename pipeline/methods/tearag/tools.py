"""TeaRAG's search as a tool, and the step that a call makes."""

from __future__ import annotations

from pipeline.core.records import Step
from pipeline.methods.tearag.grammar import parse_items
from pipeline.rollout.conversations.steps import ToolFormat, search_tool

_ENTITIES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "description": "the names that the query is about",
}
TOOLS = ToolFormat(
    search_tool("search", "Search passages and the knowledge graph.", entities=_ENTITIES),
    "subquery",
    lambda each: Step(
        entities=each.entities,
        subquery=each.query,
        context=parse_items(each.result),
        summary=each.after,
    ),
    bounded=True,
)
