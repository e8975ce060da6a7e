"""Words of a text, and untrusted text made safe to show.

The tokenizer and the folding are shared by all string comparisons.

A word is a maximal run of letters and digits (`WORD`). Two foldings exist, because they serve
different comparisons:

- `tokenize`: NFKC and case folding, accents kept. Used by lexical similarity (`core.similarity`),
  question overlap (`corpus.overlap`) and placing triples in chunks (`graph.locate`).
- `fold`: case folding, accents dropped, because questions drop them. Used by name matching
  (`graph.names`, `sft_data.mentions`).

Three places tokenize differently on purpose. The answer metrics (`core.answer_metrics`) follow
SQuAD: punctuation is deleted, not a separator. `evaluation.gold_hops` compares both readings. BM25
uses the tokenizer of bm25s, which drops stop words.

Some scripts write no spaces between words: Chinese, Japanese, Thai, Lao, Khmer and Burmese. There a
character with its marks counts as a word wherever text is counted or matched (`UNIT`, `PIECE`,
`spaced`), except in lexical similarity.

`visible` is for text of documents, models and servers that a person reads: in a terminal, a log, an
error message or the report. `file_name` is for names of files, which may be any bytes.
"""

from __future__ import annotations

import re
import unicodedata

WORD = re.compile(r"[^\W_]+")
# Characters of scripts without spaces between words, and the marks that belong to the one before.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_MARKS = "".join(
    chr(code)
    for block in (range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800))
    for code in block
    if unicodedata.category(chr(code)).startswith("M")
)
SPACELESS = re.compile(f"[{_SPACELESS}][{_MARKS}]*")
# The words of `WORD`, but single characters of such scripts.
UNIT = re.compile(f"{SPACELESS.pattern}|[^\\W_{_SPACELESS}]+")
# What counts as a word of running text, with its punctuation.
PIECE = re.compile(f"{SPACELESS.pattern}[。，、！？：；）」』】》〉”’…]*|[^\\s{_SPACELESS}]+")
# The parenthesis that ends a title and makes it unique: "Frozen (2013 film)".
QUALIFIER = re.compile(r"\s*[(（][^()（）]*[)）]\s*$")

# API keys in the forms of known services; other secrets look like any text.
_API_KEY = re.compile(
    r"(?<![A-Za-z0-9_-])(?:(?:sk|gsk|xai|nvapi|pplx)-[\w-]{8,}|(?:hf_|gh[opsu]_|AIza)[\w-]{24,}"
    r"|github_pat_\w{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|(?<=Bearer )[\w.~+/-]{8,})"
)

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, formats, surrogates, separators
# Control characters; bytes of a file name that are not UTF-8 are the surrogates U+DC80 to U+DCFF.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WRITTEN = re.compile(r"\\[xu][0-9a-f]{2}")
# Format characters that words need (Persian, Hindi, emoji) or that are visible signs.
_SHOWN = frozenset("\u200c\u200d\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
_ARABIC_SIGNS = range(0x0600, 0x0606)


def tokenize(text: str) -> list[str]:
    """Words of the NFKC-normalized, case-folded text, in order, with repetitions."""
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def spaced(text: str) -> str:
    """``text`` with spaces around each character of a script without spaces between words."""
    return text if text.isascii() else SPACELESS.sub(r" \g<0> ", text)


def fold(word: str) -> str:
    """The word case-folded and without accents (NFKD, combining characters removed)."""
    folded = word.casefold()
    if folded.isascii():  # nothing to remove, and by far the most words
        return folded
    characters = unicodedata.normalize("NFKD", folded)
    return "".join(char for char in characters if not unicodedata.combining(char))


def visible(text: str) -> str:
    """``text`` with every invisible control written out; lines and tabs are kept.

    An escape sequence could rewrite a terminal, and a bidirectional control (such as U+202E) could
    show a sentence in another order. ASCII controls become control pictures (``␛``), all others
    ``\\u202e``. Text in scripts from right to left is unchanged, apart from explicit controls.
    """
    if text.isprintable():
        return text
    return "".join(_written_out(char) if _is_hidden(char) else char for char in text)


def file_name(path: object) -> str:
    """The name of a file as text that UTF-8 can encode, on one line; other names give other texts.

    Control characters and bytes that are not UTF-8 are written as ``\\x0a`` and ``\\xe9``. In such
    a name, and in one that reads like it, backslashes are doubled.
    """
    name = str(path)
    if not _UNWRITABLE.search(name) and not _WRITTEN.search(name):
        return name
    return _UNWRITABLE.sub(_as_escape, name.replace("\\", "\\\\"))


def _as_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def one_line(text: str, limit: int) -> str:
    """`visible` text on one line of at most ``limit`` characters, for error messages and logs."""
    line = visible(" ".join(text[: 8 * limit].split()))
    return line if len(line) <= limit else f"{line[: limit - 2]} …"


def without_keys(text: str) -> str:
    """``text`` with ``[key]`` in place of every text that looks like an API key."""
    return _API_KEY.sub("[key]", text)


def _is_hidden(char: str) -> bool:
    if char in "\n\t" or char in _SHOWN or ord(char) in _ARABIC_SIGNS:
        return False
    return unicodedata.category(char) in _HIDDEN


def _written_out(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
