"""Links between passages that share a name, found without a model.

A name is a run of capitalized words with connecting words between them ("Battle of Maldon"), or a
part of the run that begins and ends with a capital. A single word is a name if it stands alone and
never occurs in lower case in the corpus. A passage's title, with and without its qualifier, and the
ends of its triplets are names of it too. Names are compared by the digest of their folded words
(`name_key`), without leading function words: "The Beatles" equals "Beatles".

Input: titles and texts in row order, read once, and further names of passages. Output, below one
folder: ``keys.npy`` [E], ascending; ``rarity.npy`` [E], the weight of a link over each name,

    w(e) = (1 - ln df(e) / ln N)²,   df(e): passages with name e, N: passages;

and CSR tables (`graph.adjacency`): ``names``, the names of each passage; ``passages``, the passages
with each name, if they are at most `MAX_DF`; ``titles``, the passages whose title each name is.
Names of one passage are dropped unless they are titles. While building, each name of each passage
takes 16 bytes, and sorting them up to three times as much.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import StoreError
from pipeline.core.text import QUALIFIER, WORD, fold
from pipeline.knowledge.graph.adjacency import Adjacency, write_csr

LINKS = "links"  # directory below the index stage's output
MAX_DF = 50  # a name of more passages is too common to link them
_LONGEST = 6  # words of a part of a run
_CONNECTING = re.compile("and|da|de|del|den|der|di|du|la|le|of|the|van|von")
_LEADING = re.compile(
    f"{_CONNECTING.pattern}|a|an|are|as|at|but|by|did|does|for|from|had|has|how|if|in|is|it|its|on"
    "|that|these|this|those|to|was|were|what|when|where|which|who|whom|why|with"
)
_GAP = re.compile(r"[ '’&-]{1,3}")  # between words of a name
Keys = NDArray[np.uint64]
Numbers = NDArray[np.integer]


@lru_cache(maxsize=1 << 18)
def _digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def name_key(words: Sequence[str]) -> int:
    """The key of a name with these folded words, which must not be empty."""
    first = 0
    while first < len(words) - 1 and _LEADING.fullmatch(words[first]):
        first += 1
    return _digest(" ".join(words[first:]))


def title_keys(title: str) -> set[int]:
    """The keys of a title with and without its qualifier; none for a title without words."""
    forms = ([fold(w) for w in WORD.findall(form)] for form in (title, QUALIFIER.sub("", title)))
    return {name_key(words) for words in forms if words}


def name_keys(text: str) -> set[int]:
    """The keys of all names in a text; single words are not yet checked against lower case."""
    found = set()
    for run in _runs(text):
        leading = takewhile(lambda word: _LEADING.fullmatch(word.lower()), run[:-1])
        run = run[len(list(leading)) :]
        folded = [fold(word) for word in run]
        capitals = [n for n, word in enumerate(run) if word[0].isupper()]
        if len(run) == 1:
            found.add(name_key(folded))
        for number, first in enumerate(capitals, start=1):
            if _LEADING.fullmatch(folded[first]):
                continue
            found.update(
                name_key(folded[first : last + 1])
                for last in capitals[number : number + _LONGEST]
                if last < first + _LONGEST
            )
    return found


def _runs(text: str) -> Iterator[list[str]]:
    """Runs of capitalized words, with the connecting words between them."""
    run: list[str] = []
    connecting: list[str] = []
    end = 0
    for match in WORD.finditer(text):
        word, gap = match.group(), text[end : match.start()]
        # "J. R. Smith" is one name; after a longer word, a full stop ends the sentence.
        initial = gap == ". " and run and len(run[-1]) <= 2
        if run and not (initial or _GAP.fullmatch(gap)):
            yield run
            run, connecting = [], []
        if word[0].isupper():
            run += [*connecting, word]
            connecting = []
        elif run and _CONNECTING.fullmatch(word):
            connecting.append(word)
        elif run:
            yield run
            run, connecting = [], []
        end = match.end()
    if run:
        yield run


def write_links(
    folder: Path,
    passages: Iterable[tuple[str, str]],
    named: Iterable[tuple[int, str]] = (),
) -> int:
    """Write the links of passages (title, text); returns the number of names.

    ``named`` yields further names (row, name), such as the ends of triplets.
    """
    keys, rows = array("Q"), array("Q")
    titles, titled = array("Q"), array("Q")
    lower: set[str] = set()
    count = 0
    for title, text in passages:
        of_title = title_keys(title)
        found = name_keys(text) | name_keys(title) | of_title
        keys.extend(found)
        rows.extend([count] * len(found))
        titles.extend(of_title)
        titled.extend([count] * len(of_title))
        lower.update(word for word in WORD.findall(text) if word[0].islower())
        count += 1
    for row, name in named:
        if words := [fold(word) for word in WORD.findall(name)]:
            keys.append(name_key(words))
            rows.append(row)
    common = np.array(sorted({_digest(fold(word)) for word in lower}), dtype=np.uint64)
    title_T = np.frombuffer(titles, dtype=np.uint64)
    key_M, row_M = _sorted_pairs(keys, rows)
    is_title_M = np.isin(key_M, title_T)
    kept_M = is_title_M | ~np.isin(key_M, common)
    key_M, row_M = key_M[kept_M], row_M[kept_M]
    key_E, of_key_M, df_E = np.unique(key_M, return_inverse=True, return_counts=True)
    is_title_E = np.isin(key_E, title_T)
    kept_E = (df_E > 1) & ((df_E <= MAX_DF) | is_title_E) | is_title_E
    number_E = np.cumsum(kept_E) - 1
    kept_M = kept_E[of_key_M]
    name_M, row_M, df_M = number_E[of_key_M[kept_M]], row_M[kept_M], df_E[of_key_M[kept_M]]
    key_E, df_E = key_E[kept_E], df_E[kept_E]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "keys.npy", key_E)
    rarity_E = (1 - np.log(df_E) / np.log(max(count, 2))) ** 2
    np.save(folder / "rarity.npy", rarity_E.astype(np.float32))
    linking_M = (df_M > 1) & (df_M <= MAX_DF)
    linking = name_M[linking_M], row_M[linking_M]
    write_csr(folder / "passages", lambda: [linking], len(key_E))
    shared_M = df_M > 1
    shared = row_M[shared_M], name_M[shared_M]
    write_csr(folder / "names", lambda: [shared], count)
    title_T, titled_T = _sorted_pairs(titles, titled)
    title_rows = np.searchsorted(key_E, title_T), titled_T
    write_csr(folder / "titles", lambda: [title_rows], len(key_E))
    return len(key_E)


def _sorted_pairs(keys: array[int], rows: array[int]) -> tuple[Keys, Numbers]:
    """The distinct pairs, by key and then by row."""
    key_M, row_M = (np.frombuffer(part, dtype=np.uint64) for part in (keys, rows))
    order_M = np.lexsort((row_M, key_M))
    key_M, row_M = key_M[order_M], row_M[order_M].astype(np.uint32)
    new_M = np.ones(len(key_M), dtype=bool)
    new_M[1:] = (key_M[1:] != key_M[:-1]) | (row_M[1:] != row_M[:-1])
    return key_M[new_M], row_M[new_M]


class Links:
    """The links that `write_links` wrote, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError when a file is missing or broken."""
        try:
            keys_E, rarity_E = (
                np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
                for name in ("keys", "rarity")
            )
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{folder}: no links ({error}); set index.links to true and run the index stage "
                "again"
            ) from None
        self._keys_E: Keys = keys_E
        self.rarity_E: NDArray[np.float32] = rarity_E
        tables = (Adjacency.load(folder / name) for name in ("names", "passages", "titles"))
        self.names, self.passages, self.titles = tables

    def __len__(self) -> int:
        """The number of passages."""
        return self.names.num_keys

    def find(self, keys: Iterable[int]) -> Numbers:
        """The numbers of the names with these keys, ascending; unknown keys are left out."""
        key_K = np.array(sorted(set(keys)), dtype=np.uint64)
        place_K = np.searchsorted(self._keys_E, key_K)
        known_K = place_K < len(self._keys_E)
        known_K[known_K] = self._keys_E[place_K[known_K]] == key_K[known_K]
        found: Numbers = place_K[known_K]
        return found
