"""Output grammars, one module per paper. Every consumer of outputs uses these parsers."""

from pipeline.rollout.grammars.base import Finish, Grammar, NextAction, ParsedOutput, grammar

__all__ = ["Finish", "Grammar", "NextAction", "ParsedOutput", "grammar"]
