"""One module per method, and the look-up by name.

`method` gives the implementation of a name; only the module of that method is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.core.methods import METHODS, listed_methods
from pipeline.methods.base import Method, ScoreInputs, Scorer

if TYPE_CHECKING:
    from pipeline.pairs.candidates import CandidateTerms

__all__ = [
    "Method",
    "ScoreInputs",
    "Scorer",
    "candidate_terms",
    "method",
]


def method(name: str) -> Method:
    """The implementation of the method called ``name``.

    Raises InputError for an unknown name.
    """
    if name not in METHODS:
        raise InputError(f"reward {name!r} is not known; this version has {listed_methods()}")
    implementation: Method = import_module(METHODS[name].implementation).METHOD
    return implementation


def candidate_terms(terms: Mapping[str, Any], grammar: str | None = None) -> CandidateTerms | None:
    """The values to pair by, from reward terms without the name of their method.

    Tries the method of ``grammar`` first and then all others, because trajectories in one grammar
    may have been scored with another method's reward. Returns None when no method recognizes the
    terms.
    """
    for name in sorted(METHODS, key=lambda name: name != grammar):
        values = method(name).candidate_terms(terms)
        if values is not None:
            return values
    return None
