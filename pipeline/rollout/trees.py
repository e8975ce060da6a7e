"""Trees of samples: the samples of a question share their first turns, which are generated once.

Input: the samples of a question that have finished. Output: which samples can begin, and the sample
and turn at which each branches off. It depends on these samples alone, so that the tree is
independent of the order in which they finish, and its tokens can be counted afterwards.

A tree shares the samples evenly: n samples with the same first turns continue in at most ``branch``
turns, which share the n. With ``prune`` it follows the best turn instead, so that its size grows
with its depth and not exponentially (DecEx-RAG, arXiv 2510.05691).

Where a trajectory ends, it is one sample, and the others branch off before its last turn. So a
question always has all its samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from pipeline.core.answer_metrics import f1
from pipeline.core.records import Trajectory


class Start(NamedTuple):
    """A sample that begins with the first ``turns`` turns of the sample ``parent``, if any."""

    sample: int
    parent: int | None
    turns: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape of the trees of a roll-out."""

    branch: int
    prune: bool = False

    def starts(self, samples: int, finished: Mapping[int, Trajectory]) -> list[Start]:
        """The samples of a question that can have begun, of ``samples`` in all.

        ``finished`` has the finished trajectories by their number. They are among the result.
        """
        return self._pruned(samples, finished) if self.prune else self._even(samples, finished)

    def _even(self, samples: int, finished: Mapping[int, Trajectory]) -> list[Start]:
        starts: list[Start] = []
        nodes: list[tuple[int, int, int | None, int]] = [(0, samples, None, 0)]
        while nodes:  # samples from ``first`` on that share the first ``turns`` turns of ``parent``
            first, leaves, parent, turns = nodes.pop()
            for sample, share in branches(first, leaves, self.branch):
                if sample != parent:
                    starts.append(Start(sample, parent, turns))
                if share == 1 or sample not in finished:
                    continue
                if _turns(finished[sample]) > turns + 1:
                    nodes.append((sample, share, sample, turns + 1))
                else:
                    nodes.append((sample + 1, share - 1, sample if turns else None, turns))
        return starts

    def _pruned(self, samples: int, finished: Mapping[int, Trajectory]) -> list[Start]:
        """From each state ``branch`` turns with ``branch`` samples each; the best turn goes on.

        The value of a turn is the mean token F1 of its samples; the first of equal ones is the
        best. The samples of the best turn are the next state's turns. A turn that ends its
        trajectory has one sample; if all turns do, there are further ones from the same state.
        """
        starts: list[Start] = []
        parent, depth = None, 0
        candidates: list[int] = []

        def begin(parent: int | None, turns: int, count: int) -> list[int]:
            new = [*range(len(starts), min(len(starts) + count, samples))]
            starts.extend(Start(sample, parent, turns) for sample in new)
            return new

        while True:
            candidates += begin(parent, depth, self.branch - len(candidates))
            if not finished.keys() >= set(candidates):
                return starts
            sharing = {
                turn: [turn, *begin(turn, depth + 1, self.branch - 1)]
                for turn in candidates
                if _turns(finished[turn]) > depth + 1
            }
            if len(starts) == samples or not finished.keys() >= set().union(*sharing.values()):
                return starts
            candidates = []
            if sharing:
                values = {turn: _value(finished, sharers) for turn, sharers in sharing.items()}
                parent, depth = max(values, key=values.__getitem__), depth + 1
                candidates = sharing[parent]


def branches(first: int, leaves: int, branch: int) -> list[tuple[int, int]]:
    """At most ``branch`` branches that share the samples from ``first`` on evenly.

    Each is (first sample, leaves). ``leaves`` is the number of samples.
    """
    count = min(branch, leaves)
    bounds = [first + leaves * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in pairwise(bounds)]


def generated_tokens(samples: Sequence[Trajectory], tree: Tree | None) -> int:
    """The tokens that the policy generated for all samples of a question, in order.

    Turns that samples of a tree share were generated once. Equal tokens would not tell which these
    are, because two branches may generate the same ones.
    """
    if tree is None:
        return sum(trajectory.tokens.thinking for trajectory in samples)
    return sum(
        end - start
        for sample, _, shared in tree.starts(len(samples), dict(enumerate(samples)))
        for start, end in _turn_tokens(samples[sample])[shared:]
    )


def _turn_tokens(trajectory: Trajectory) -> list[tuple[int, int]]:
    return [(start, end) for start, end, writer in trajectory.token_spans if writer == "model"]


def _turns(trajectory: Trajectory) -> int:
    return len(_turn_tokens(trajectory))


def _value(finished: Mapping[int, Trajectory], samples: Sequence[int]) -> float:
    return fmean(f1(finished[one].answer, finished[one].answers) for one in samples)
