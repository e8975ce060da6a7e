"""Wordings of comparison questions over the closed world, as tables keyed by relation.

The question types are the comparison of HotpotQA (arXiv 1809.09600) and the bridge comparison of
2WikiMultiHopQA (arXiv 2011.01060). `RANKED` questions compare years, dates or lengths; the answer
is one of two entities. `SAME` questions are answered by yes or no. Bridge comparisons compare facts
of the persons to whom two heads are related by a relation of `BRIDGES`.
"""

from __future__ import annotations

# relation -> (question, whether the greater value wins)
RANKED: dict[str, tuple[tuple[str, bool], ...]] = {
    "birth_date": (
        ("Who was born first, {a} or {b}?", False),
        ("Who is older, {a} or {b}?", False),
        ("Who was born later, {a} or {b}?", True),
        ("Who is younger, {a} or {b}?", True),
    ),
    "released": (
        ("Which film was released first, {a} or {b}?", False),
        ("Which film came out earlier, {a} or {b}?", False),
        ("Which film was released more recently, {a} or {b}?", True),
    ),
    "published": (
        ("Which book was published first, {a} or {b}?", False),
        ("Which book appeared earlier, {a} or {b}?", False),
        ("Which book was published more recently, {a} or {b}?", True),
    ),
    "formed": (
        ("Which band was formed first, {a} or {b}?", False),
        ("Which band started out later, {a} or {b}?", True),
    ),
    "founded": (
        ("Which city was founded first, {a} or {b}?", False),
        ("Which city is older, {a} or {b}?", False),
        ("Which city was founded later, {a} or {b}?", True),
    ),
    "length": (
        ("Which river is longer, the {a} or the {b}?", True),
        ("Which river is shorter, the {a} or the {b}?", False),
    ),
}

SAME: dict[str, tuple[str, ...]] = {
    "birthplace": (
        "Were {a} and {b} born in the same city?",
        "Do {a} and {b} come from the same city?",
    ),
    "occupation": ("Did {a} and {b} have the same profession?",),
    "employer": ("Did {a} and {b} work for the same company?",),
    "alma_mater": ("Did {a} and {b} study at the same university?",),
    "country": (
        "Are {a} and {b} located in the same country?",
        "Do {a} and {b} belong to the same country?",
    ),
    "river": ("Do {a} and {b} lie on the same river?",),
    "mouth": ("Do the {a} and the {b} reach the sea in the same country?",),
    "headquarters": ("Are {a} and {b} based in the same city?",),
    "location": ("Are {a} and {b} situated in the same city?",),
    "director": ("Were {a} and {b} directed by the same person?",),
    "studio": ("Were {a} and {b} produced by the same company?",),
    "publisher": ("Were {a} and {b} printed by the same company?",),
    "origin": ("Do {a} and {b} come from the same home town?",),
}

# relation whose tail is a person -> role of that person
BRIDGES: dict[str, str] = {
    "director": "director",
    "star": "star",
    "author": "author",
    "singer": "singer",
    "founder": "founder",
    "rector": "rector",
    "mayor": "mayor",
    "leader": "leader",
}
# {type} and {role} belong to the two heads; otherwise as `RANKED`
BRIDGE_RANKED: tuple[tuple[str, bool], ...] = (
    ("Which {type} has the {role} who was born first, {a} or {b}?", False),
    ("Which {type} has the {role} who is older, {a} or {b}?", False),
    ("Which {type} has the {role} who was born later, {a} or {b}?", True),
    ("Which {type} has the {role} who is younger, {a} or {b}?", True),
)
BRIDGE_SAME: dict[str, tuple[str, ...]] = {
    "birthplace": (
        "Were the {role} of {a} and the {role} of {b} born in the same city?",
        "Do the {role} of {a} and the {role} of {b} come from the same city?",
    ),
    "occupation": ("Did the {role} of {a} and the {role} of {b} have the same profession?",),
    "alma_mater": ("Did the {role} of {a} and the {role} of {b} study at the same university?",),
}

# Pairs of relations that a single word expresses.
INFERENCES: dict[tuple[str, str], tuple[str, ...]] = {
    ("father", "father"): (
        "Who is the paternal grandfather of {a}?",
        "Who is {a}'s paternal grandfather?",
    ),
    ("spouse", "father"): (
        "Who is the father-in-law of {a}?",
        "Who is {a}'s father-in-law?",
    ),
}
