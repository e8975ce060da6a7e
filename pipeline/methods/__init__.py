"""One package per method, with all that its paper defines, and the look-up by name.

`method` gives the implementation of a name; only the modules of that method are imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.core.methods import METHODS, listed_methods

if TYPE_CHECKING:  # importing the grammar of a method imports this module, and no more
    from pipeline.methods.base import Method
    from pipeline.pairs.candidates import CandidateTerms


def method(name: str) -> Method:
    """The implementation of the method called ``name``.

    Raises InputError for an unknown name.
    """
    if name not in METHODS:
        raise InputError(f"reward {name!r} is not known; this version has {listed_methods()}")
    implementation: Method = import_module(f"{METHODS[name].package}.method").METHOD
    return implementation


def candidate_terms(terms: Mapping[str, Any], grammar: str | None = None) -> CandidateTerms | None:
    """The values to pair by, from reward terms without the name of their method.

    Tries the method of ``grammar`` first and then all others, because trajectories in one grammar
    may have been scored with another method's reward. Returns None when no method recognizes the
    terms.
    """
    names = sorted(METHODS, key=lambda name: name != grammar)
    found = (method(name).candidate_terms(terms) for name in names)
    return next((values for values in found if values is not None), None)
