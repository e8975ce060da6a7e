"""Step progress: how much a step raises the probability of the right answer (ProGraph-R1, eq. 11).

    r_sp(t) = P(y* | s_<=t) - P(y* | s_<t)

P is a Monte Carlo value estimate: the mean outcome (token F1) of M continuations that the policy
samples from a state, which is the question or a trajectory up to the end of a knowledge block.
The value after the last turn is the outcome of the trajectory itself, so nothing is sampled there.
Input: trajectories, and a function that continues them. Output: the values of all states.

A state is its prompt and token ids, and each distinct state is continued once. All samples of a
question share the initial state, and samples with the same first tokens share early states. The
answers of a state's continuations are cached by content (policy, settings, ids), so a killed stage
continues where it stopped, and changed gold answers need no new continuations. States are continued
in the order of their ids, so that an engine with a prefix cache reuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pipeline.core.answer_metrics import f1
from pipeline.core.content_cache import ContentCache, digest
from pipeline.core.errors import RetrievalError
from pipeline.core.input_files import parse_json
from pipeline.core.records import Trajectory
from pipeline.rollout.partial import PartialTrajectory, stable_seed
from pipeline.rollout.turns import before_turn, turns_of

Continue = Callable[[Iterable[PartialTrajectory]], Iterator[Trajectory]]
BLOCK = 32  # states per write to the cache: a kill loses at most this many


@dataclass(slots=True)
class Cost:
    """Counts of states and of the work they took.

    Attributes:
        states: states of all trajectories; a shared state counts once per trajectory.
        distinct: distinct states of each question.
        known: distinct states whose continuations were in the cache.
        continuations: continuations of the distinct states of each question, cached ones included.
        generated_tokens: tokens that the policy generated for them.
    """

    states: int = 0
    distinct: int = 0
    known: int = 0
    continuations: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Continued:
    """The answers of one state's continuations, except where retrieval failed."""

    answers: list[str | None]
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class _State:
    """``trajectory`` before turn ``turn``: its first ``length`` tokens.

    The model wrote ``written`` of them.
    """

    trajectory: Trajectory
    turn: int
    length: int
    written: int

    @classmethod
    def before(cls, trajectory: Trajectory, turn: int) -> _State:
        state = before_turn(trajectory, turn, sample=0, seed=0)
        written = sum(end - start for start, end, writer in state.token_spans if writer == "model")
        return cls(trajectory, turn, len(state.token_ids), written)

    @property
    def ids(self) -> tuple[list[int], list[int]]:
        """The ids of its prompt, and its token ids."""
        return self.trajectory.prompt_ids, self.trajectory.token_ids[: self.length]


@dataclass(slots=True)
class ValueEstimator:
    """Estimates the values of states by continuing them, and caches the continuations.

    Attributes:
        resume: continues partial trajectories.
        cache: the cache of continuations.
        identity: digest of everything that decides a continuation besides its state (policy,
            settings).
        continuations: M, the continuations of each state.
        seed: the seed of the run.
        cost: counts over all calls of `values`.
    """

    resume: Continue
    cache: ContentCache
    identity: str
    continuations: int
    seed: int
    cost: Cost = field(default_factory=Cost)

    def values(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """The values before every turn of every trajectory and after its last turn.

        Each list is one longer than the turns of its trajectory. Raises RetrievalError when
        retrieval failed for all continuations of a state.
        """
        states: dict[bytes, _State] = {}
        keys: list[list[bytes]] = []
        for trajectory in trajectories:
            turns = range(len(turns_of(trajectory)))
            before_turns = [_State.before(trajectory, turn) for turn in turns]
            keys.append([self._key(state) for state in before_turns])
            states |= zip(keys[-1], before_turns, strict=True)
        self.cost.states += sum(map(len, keys))
        continued = self._continued(states)
        # By question, so that the costs of the shards of a stage add up to the whole cost.
        for _, key in {
            (trajectory.question_id, key)
            for trajectory, of_trajectory in zip(trajectories, keys, strict=True)
            for key in of_trajectory
        }:
            self.cost.distinct += 1
            self.cost.continuations += self.continuations
            self.cost.generated_tokens += continued[key].generated_tokens
        return [
            [
                *(_mean_f1(continued[key], trajectory) for key in trajectory_keys),
                f1(trajectory.answer, trajectory.answers),
            ]
            for trajectory, trajectory_keys in zip(trajectories, keys, strict=True)
        ]

    def _key(self, state: _State) -> bytes:
        settings = (self.identity, str(self.continuations), str(self.seed))
        return digest(*settings, *map(str, state.ids))

    def _continued(self, states: Mapping[bytes, _State]) -> dict[bytes, Continued]:
        """The continuations of every state by its key, from the cache or sampled."""
        stored = self.cache.get(list(states))
        continued = {
            key: Continued(**parse_json(value.decode(), self.cache.path))
            for key, value in stored.items()
        }
        self.cost.known += len(continued)
        missing = sorted(states.keys() - continued.keys(), key=lambda key: states[key].ids)
        unfinished: dict[bytes, list[Trajectory]] = {}
        finished: dict[bytes, Continued] = {}
        for trajectory in self.resume(self._partials(missing, states)):
            key = missing[trajectory.sample // self.continuations]
            unfinished.setdefault(key, []).append(trajectory)
            if len(unfinished[key]) == self.continuations:
                finished[key] = _result(unfinished.pop(key), states[key])
            if len(finished) >= BLOCK:
                self._store(finished)
                continued |= finished
                finished = {}
        self._store(finished)
        return continued | finished

    def _partials(
        self, keys: Sequence[bytes], states: Mapping[bytes, _State]
    ) -> Iterator[PartialTrajectory]:
        """M partial trajectories for every key; ``sample`` numbers them over all keys."""
        for number, key in enumerate(keys):
            for repetition in range(self.continuations):
                seed = stable_seed(self.seed, "progress", key.hex(), repetition)
                sample = number * self.continuations + repetition
                state = states[key]
                yield before_turn(state.trajectory, state.turn, sample=sample, seed=seed)

    def _store(self, continued: Mapping[bytes, Continued]) -> None:
        values = {key: json.dumps(asdict(value)).encode() for key, value in continued.items()}
        self.cache.put(values.items())


def _result(trajectories: Sequence[Trajectory], state: _State) -> Continued:
    answered = sorted(
        (trajectory for trajectory in trajectories if trajectory.stop != "retrieval_error"),
        key=lambda trajectory: trajectory.sample,
    )
    if not answered:
        raise RetrievalError(
            f"retrieval failed for every continuation of {state.trajectory.trajectory_id}, turn "
            f"{state.turn}; see the retrieval error in the log above, then rerun"
        )
    tokens = sum(trajectory.tokens.thinking - state.written for trajectory in trajectories)
    return Continued([trajectory.answer for trajectory in answered], tokens)


def _mean_f1(continued: Continued, trajectory: Trajectory) -> float:
    values = [f1(answer, trajectory.answers) for answer in continued.answers]
    return sum(values) / len(values)
