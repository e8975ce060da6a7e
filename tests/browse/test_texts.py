"""Pieces of text: their roles in the loss, and the marks where two texts differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.look.browse.texts import Piece, pair_pieces, tokens, trained_pieces
from tests.browse.stored_run import TINY_READER
from tests.stages.fabricated_run import trajectory

WORDS = st.lists(st.sampled_from(["a", "bc", " ", "  ", "\n", "é", "?", "<b>"]), max_size=20)


def joined(parts: list[Piece]) -> str:
    return "".join(part.text for part in parts)


@given(WORDS, WORDS, st.integers(0, 12))
def test_texts_are_kept_and_equal_where_nothing_is_marked(
    left: list[str], right: list[str], cut: int
) -> None:
    text = "".join(left)
    parts = [Piece(text[:cut], "trained"), Piece(text[cut:], "observed")]
    marked, other = pair_pieces(parts, [Piece("".join(right), "trained")])
    assert joined(marked) == text
    assert joined(other) == "".join(right)
    assert joined([p for p in marked if p.role == "trained"]) == text[:cut]
    same = [joined([p for p in side if not p.differs]) for side in (marked, other)]
    assert same[0] == same[1]


def test_equal_texts_have_no_marks() -> None:
    parts = [Piece("Step 1: ", "trained"), Piece("Vell", "observed")]
    assert pair_pieces(parts, parts) == (parts, parts)


def test_long_texts_are_marked_from_the_first_to_the_last_difference() -> None:
    """Word by word these would take minutes."""
    left, right = "same " + "x y " * 3000 + "end", "same " + "y z " * 3000 + "end"
    marked, _ = pair_pieces([Piece(left, "trained")], [Piece(right, "trained")])
    assert [(p.text[:4], p.differs) for p in marked] == [
        ("same", False),
        (" x y", True),
        (" end", False),
    ]


def test_white_space_between_other_words_is_no_equal_text() -> None:
    """As equal words, the spaces of these texts would take half a minute."""
    left, right = (" ".join(f"{side}{n}" for n in range(1000)) for side in "ab")
    marked, other = pair_pieces([Piece(left, "trained")], [Piece(right, "trained")])
    assert (marked, other) == ([Piece(left, "trained", True)], [Piece(right, "trained", True)])
    marked, _ = pair_pieces([Piece("no, it is b", "trained")], [Piece("yes, it was b", "trained")])
    assert [p.text for p in marked if p.differs] == ["no", " is"]


def test_sampled_tokens_before_a_step_pair_are_masked() -> None:
    """The pair trains tokens 3 and 4; the policy also sampled 0, and 1 to 2 were retrieved."""
    codec = Tokenizer.from_file(str(TINY_READER / "tokenizer.json"))
    ids = codec.encode("Step 1 : Vell is in Ostar", add_special_tokens=False).ids[:5]
    of_pair = [(0, 3, "observation"), (3, 5, "model")]
    whole = trajectory("q", "Ostar")
    whole.token_spans = [(0, 1, "model"), (1, 3, "observation"), (3, 9, "model")]
    whole.logprobs = [0.0, None, None, -0.6931471805599453, None]
    parts = trained_pieces(codec, ids, of_pair, whole)
    assert [part.role for part in parts] == ["masked", "observed", "trained"]
    assert joined(parts) == codec.decode(ids, skip_special_tokens=False)
    shown = tokens(codec, ids, of_pair, whole)
    assert [token.role for token in shown] == [
        "masked",
        "observed",
        "observed",
        "trained",
        "trained",
    ]
    assert [token.probability for token in shown] == [1.0, None, None, 0.5, None]
