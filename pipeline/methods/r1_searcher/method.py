"""The parts of R1-Searcher (arXiv 2503.05592), which are those of Search-R1.

Its released models are evaluated here and not trained. A run that trains in its grammar has
Search-R1's outcome reward (block ``rewards.search_r1``). The paper's reward is the token F1 with a
penalty of 2 for a wrong format, after a first stage that rewards searches.
"""

from __future__ import annotations

from pipeline.methods.search_r1 import method

METHOD = method.METHOD
