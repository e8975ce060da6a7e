"""Whether there are enough supervised examples to train on.

Input: the numbers of examples asked for and available, by number of hops, and why hops were left
out. Raises an InputError with these numbers and the remedy. The check runs twice: before models
extract, select and rewrite, with the most that the gold paragraphs allow, and on the finished
examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.config.policy import SftData
from pipeline.core.errors import InputError
from pipeline.core.text import tokenize
from pipeline.sft_data.steps import Hop


def check_supply(hops: Sequence[Sequence[Hop]], settings: SftData) -> None:
    """Refuse questions whose usable hops give fewer examples than ``sft_data.min_share`` requires.

    ``hops`` are the hops of every question.
    """
    usable = [[hop for hop in of_question if hop.fault is None] for of_question in hops]
    complete = Counter(
        len(some) for some, all_ in zip(usable, hops, strict=True) if len(some) == len(all_) > 1
    )
    subqueries = {tuple(tokenize(hop.question)) for some in usable for hop in some}
    available = {1: len(subqueries), **complete}
    most = sum(min(size, available.get(hops, 0)) for hops, size in settings.sizes.items())
    check_examples(most, available, settings, len(hops), count_faults(hops))


def count_faults(hops: Sequence[Sequence[Hop]]) -> Counter[str]:
    """Why questions and hops were left out, with their numbers."""
    faults = Counter(f"hop: {hop.fault}" for part in hops for hop in part if hop.fault is not None)
    if empty := sum(not part for part in hops):
        faults["question without decomposition"] = empty
    return faults


def check_examples(
    count: int,
    available: Mapping[int, int],
    settings: SftData,
    questions: int,
    faults: Counter[str],
) -> None:
    """Raise InputError for no training example, or fewer than ``sft_data.min_share`` of ``sizes``.

    Args:
        count: training examples.
        available: examples by number of hops, before the test is held out.
        settings: the numbers asked for.
        questions: number of questions.
        faults: why hops and examples were left out.
    """
    wanted = sum(settings.sizes.values())
    if not questions:
        raise InputError("sft-data: data.sft has no questions; add files of decomposed questions")
    if count and count >= settings.min_share * wanted:
        return
    requested = {
        hops: (settings.sizes.get(hops, 0), settings.test_sizes.get(hops, 0))
        for hops in sorted({*settings.sizes, *settings.test_sizes, *available})
    }
    counts = "; ".join(
        f"{hops}-hop: {train} + {test} requested, {available.get(hops, 0)} available"
        for hops, (train, test) in requested.items()
    )
    left_out = ", ".join(f"{reason}: {number}" for reason, number in faults.most_common())
    problem = (
        f"the {questions} questions of data.sft give {count} of the {wanted} training examples "
        f"that sft_data.sizes asks for, less than sft_data.min_share ({settings.min_share:g}) of "
        "them"
        if count
        else f"none of the {questions} questions of data.sft gives a training example"
    )
    raise InputError(
        f"sft-data: {problem}; "
        f"examples by hops (sft_data.sizes + sft_data.test_sizes): {counts}; "
        f"left out: {left_out or 'nothing'}; {_remedy(count, available, settings, faults)}"
    )


def _remedy(
    count: int, available: Mapping[int, int], settings: SftData, faults: Counter[str]
) -> str:
    missing = faults["hop: paragraph not in the corpus"]
    if missing and 2 * missing >= faults.total():
        return (
            "set sft_data.triplets: llm, which extracts from the questions' own paragraphs, or "
            "add the paragraphs to corpus.files"
        )
    if not any(available.values()):
        return (
            "the questions need a decomposition with paragraphs in corpus.files and answers in the "
            "facts of the graph"
        )
    if not any(available.get(hops) for hops, size in settings.sizes.items() if size):
        return "set sft_data.sizes for a number of hops that is available"
    if not count:
        return "lower sft_data.test_sizes, or add questions to data.sft"
    return "add questions to data.sft, or lower sft_data.sizes or sft_data.min_share"
