"""Output grammars, one module per paper. Every consumer of outputs uses these parsers."""

from pipeline.rollout.grammars.base import (
    Finish,
    Grammar,
    Insert,
    NextAction,
    ParsedOutput,
    Retrieve,
    grammar,
)

__all__ = ["Finish", "Grammar", "Insert", "NextAction", "ParsedOutput", "Retrieve", "grammar"]
