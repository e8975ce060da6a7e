"""Count idioms that make a sentence hard to read: relative clauses without a noun, and their like.

Reads the docstrings, comments and messages (strings of at least four words) of each package, and
the pages in Markdown, without their code blocks. Prints the idioms per 1,000 words of each room,
and with ``--show`` every place; files given as arguments are rooms of their own. Exits with status
1 when a room has more than one idiom, and more than ``LIMIT`` in 1,000 words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 2.0
# "what" is not counted with a capital: it begins a question.
IDIOMS = re.compile(
    r"""\b(?:
    those\ of | that\ of (?!\ course)
    | (?:those|all|any|each|others)\ (?:that|which|who|whose)
    | (?:none|some|all|most|both|one|any|neither)\ of\ (?:which|whom|whose)
    | ones?\ (?:that|which|who|whose) | one\ of\ (?:its|their|this|that)\ (?!kind)
    | of\ (?:its|their|one's)\ own
    | (?<!here\ )(?:is|are|was|were)\ no (?!\ (?:longer|more|less|fewer|better|worse|lower)\b)
    | what\ (?:it|they|is|are|was|were|has|had|the\ others?)
    | how\ (?:many|much|far)\ (?:has|have|had|it|they)
    | where\ (?:that|this|it|they)\ (?:is|are|was|were|has|have|does|do)
    | where\ (?:none|there\ is\ none)
    | than\ (?:there|it|they)\ (?:is|are|has|have)
    | which\ is\ (?:nothing|none) | says?\ so | such\ as\ (?:it|they)\ (?:is|are) | whatever
    )\b""",
    re.VERBOSE,
)
CODE = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the words of each docstring, comment and message, or of each paragraph."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        prose = CODE.sub(lambda block: "\n" * block[0].count("\n"), source)
        for match in re.finditer(r"(?:^.*\S.*\n?)+", prose, re.MULTILINE):
            yield prose.count("\n", 0, match.start()) + 1, match[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if len(node.value.split()) >= 4:
            yield node.lineno, node.value


def idioms(text: str) -> list[str]:
    """The idioms of a text, each with the words around it."""
    line = " ".join(text.split())
    found = IDIOMS.finditer(line)
    return [line[max(0, match.start() - 60) : match.end() + 40] for match in found]


def room_of(path: Path) -> str:
    top, *rest = path.relative_to(ROOT).parts
    if path.suffix == ".md":
        return "docs"
    return f"{top}/{rest[0]}" if top == "pipeline" and len(rest) > 1 else top


def main(arguments: list[str]) -> int:
    given = [Path(argument).resolve() for argument in arguments if argument != "--show"]
    rooms = ("pipeline", "tasks", "benchmarks")
    packages = [file for name in rooms for file in (ROOT / name).rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    words: Counter[str] = Counter()
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in given or sorted([*packages, *pages]):
        name = str(path.relative_to(ROOT))
        room = name if given else room_of(path)
        for line, text in texts(path):
            words[room] += len(text.split())
            places[room] += [f"{name}:{line}: … {found} …" for found in idioms(text)]
    rates = {room: 1000 * len(places[room]) / words[room] for room in words}
    for room in sorted(rates, key=rates.__getitem__):
        for place in places[room] if "--show" in arguments else ():
            print(place)
        count = f"{len(places[room]):4} idioms in {words[room]:6,} words"
        print(f"{room:32}{count}, {rates[room]:5.1f} in 1,000")
    return any(rate > LIMIT and len(places[room]) > 1 for room, rate in rates.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
