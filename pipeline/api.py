"""Python interface to a run: its records and policies, sampling, rewards and preference pairs.

Input: a configuration, or the directory of a run. Output: the records of `pipeline.core.records`.
Nothing here runs a missing stage of the run; ``steep run`` does. Trajectories, rewards and pairs
are computed by the functions of the stages, with the settings of the configuration.

>>> from pipeline import Run
>>> run = Run.open("embedded")
>>> kinds = [pair.kind for pair in run.pairs(round=1)]
>>> trajectories = run.roll_out(list(run.questions("test")), policy=run.policies()[-1])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pipeline.core.errors import ConfigError, InputError, StoreError
from pipeline.core.input_files import read_json
from pipeline.core.process_variables import choose_kernels
from pipeline.core.record_io import iterate_records, read_records, write_parquet
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.core.row_files import iterate_parquet
from pipeline.core.verdicts import Verdict
from pipeline.engine.store import newest_outputs, problems, sound_manifest

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.engine.context import StageContext
    from pipeline.engine.stage import StageTask

Rewards = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Policy:
    """A policy of a run: a LoRA adapter over the base model.

    ``number`` is 0 for SFT, or for the policy from which the run starts, and n for the policy that
    round n trained. ``directory`` holds ``lineage.json``, and ``adapter/`` if the policy was
    trained. ``fingerprint`` is a hash of the adapter and the base model, and the value of
    `Trajectory.policy`.
    """

    number: int
    directory: Path
    fingerprint: str

    @property
    def name(self) -> str:
        """``sft``, ``base``, ``start`` or ``round-n``, as in the metrics."""
        if self.number:
            return f"round-{self.number}"
        if self.directory.parent.name != "start":
            return "sft"
        return "start" if (self.directory / "adapter").is_dir() else "base"


def compare_runs(runs: Iterable[Path | str]) -> dict[str, Any]:
    """Compare finished runs (``steep compare --json``): directories, or names below ``runs/``.

    Returns groups, differing settings, means and tests
    (`pipeline.evaluation.run_comparison.Comparison`). Raises InputError for runs over different
    questions, StoreError for a run without evaluation.

    >>> tests = compare_runs(["runs/embedded", "runs/no-process"])["tests"]
    """
    from pipeline.look.report.finished_run import compare

    return asdict(compare(map(str, runs)))


class Run:
    """One run: the completed stages of a configuration, with methods to read and use their output.

    ``stages`` maps labels such as ``corpus``, ``questions-test``, ``sample-1`` or
    ``evaluate-policy-0`` to the directories of completed stages. ``config`` is None for a run
    opened by its directory; such a run can be read, but cannot roll out, score or select.
    """

    def __init__(
        self, directory: Path, stages: Mapping[str, Path], report: StageTask | None
    ) -> None:
        self.directory = directory
        self.stages = dict(stages)
        self._report = report
        self._whole: set[str] = set()  # labels of the stages whose output was checked

    @classmethod
    def open(
        cls,
        config: Path | str = "embedded",
        *,
        overrides: Sequence[str] = (),
        data: Path | str | None = None,
    ) -> Run:
        """The run of a configuration file, or of a shipped configuration's name.

        ``overrides`` are ``key.key=value`` as for ``--set``; ``data`` is the directory of the data
        files. Relative directories in the configuration are below the current directory. Raises
        ConfigError for an invalid configuration, InputError for a missing input file.

        Sets ``MKL_CBWR`` unless it is set, so that float32 results of this process equal the
        results of the stages. The variable has an effect only before the first product of matrices.

        >>> run = Run.open("embedded", overrides=["seed=1", "name=embedded-seed1"])
        """
        from pipeline.engine.status import complete_outputs
        from tasks import task_for

        choose_kernels()
        root = None if data is None else str(Path(data).absolute())
        report = task_for("report", str(config), tuple(overrides), root)
        return cls(report.settings.run_dir, complete_outputs(report), report)

    @classmethod
    def from_directory(cls, directory: Path | str) -> Run:
        """The run in a directory such as ``runs/embedded``, for reading.

        If a stage has several outputs, the output that the newest later stage has used is taken.
        Raises StoreError when the directory holds no completed stage, or a damaged manifest.

        >>> metrics = Run.from_directory("runs/embedded").metrics()
        """
        outputs = newest_outputs(Path(directory) / "store", read=sound_manifest)
        if not outputs:
            raise StoreError(f"{directory}: no completed stages; expected a directory of runs/")
        return cls(Path(directory), outputs, None)

    @property
    def config(self) -> Config | None:
        """The checked configuration; None for a run opened by its directory."""
        return None if self._report is None else self._report.settings

    def stage(self, label: str) -> Path:
        """The directory of a completed stage.

        Raises StoreError when it is not complete, or when files are missing or cut short.

        >>> run.stage("sample-2") / "timing.json"
        """
        if label not in self.stages:
            complete = ", ".join(sorted(self.stages)) or "none"
            raise StoreError(
                f"stage {label} of {self.directory} is not complete; run it with `steep run`, or "
                f"use one of: {complete}"
            )
        directory = self.stages[label]
        if label not in self._whole and (found := problems(directory)):
            stage = directory.parent.name
            round = label.removeprefix(stage).removeprefix("-")
            command = f"steep run {stage}{round and f' --round {round}'} --force"
            raise StoreError(
                f"the output of {label} is damaged ({directory}: {'; '.join(found)}); make it "
                f"again with the configuration of the run: {command}"
            )
        self._whole.add(label)
        return directory

    def questions(self, split: str = "test") -> Iterator[Question]:
        """Questions of a split: sft, sampling, validation or test.

        >>> questions = list(run.questions("validation"))
        """
        return iterate_records(self.stage(f"questions-{split}") / "questions.parquet", Question)

    def trajectories(
        self, round: int, *, stage: Literal["sample", "score"] = "sample"
    ) -> Iterator[Trajectory]:
        """Trajectories that were sampled in a round, from 1; stage ``score`` adds their rewards.

        Streams the file in record batches.

        >>> correct = sum(t.answer in t.answers for t in run.trajectories(round=1))
        """
        directory = self._of_round(stage, round)
        return iterate_records(directory / "trajectories.parquet", Trajectory)

    def rewards(self, round: int) -> Iterator[tuple[str, Rewards | None]]:
        """(trajectory id, reward terms) of a round; None where retrieval failed.

        Reads only these two columns.

        >>> totals = [terms["total"] for _, terms in run.rewards(round=1) if terms]
        """
        file = self._of_round("score", round) / "trajectories.parquet"
        for row in iterate_parquet(file, ["trajectory_id", "rewards"]):
            yield row["trajectory_id"], row["rewards"]

    def pairs(self, round: int) -> Iterator[Pair]:
        """Preference pairs of a round, from 1.

        >>> hard = [pair for pair in run.pairs(round=1) if pair.kind == "hard"]
        """
        return iterate_records(self._of_round("pair", round) / "pairs.parquet", Pair)

    def evaluated(self, policy: Policy | int) -> Iterator[Trajectory]:
        """Trajectories of a policy over the evaluated questions.

        >>> wrong = [t for t in run.evaluated(0) if t.answer not in t.answers]
        """
        number = policy if isinstance(policy, int) else policy.number
        return iterate_records(
            self.stage(f"evaluate-policy-{number}") / "trajectories.parquet", Trajectory
        )

    def policies(self) -> list[Policy]:
        """The trained policies, in order of training.

        >>> latest = run.policies()[-1]
        """
        from pipeline.training.lineage import read_lineage

        numbers = {"sft": 0, "start": 0} | {
            label: int(label.removeprefix("train-"))
            for label in self.stages
            if label.startswith("train-")
        }
        return [
            Policy(number, self.stages[label], read_lineage(self.stages[label]).policy)
            for label, number in sorted(numbers.items(), key=lambda item: item[1])
            if label in self.stages
        ]

    def metrics(self) -> list[dict[str, Any]]:
        """One row per policy, data set and split, as in ``metrics.json``.

        The data set ``all`` is the average. The questions of a part of the split have rows of their
        own, such as ``test/unseen``.

        >>> em = {row["policy"]: row["em"] for row in run.metrics()
        ...       if (row["dataset"], row["split"]) == ("all", "test")}
        """
        rows: list[dict[str, Any]] = read_json(self.stage("evaluate") / "metrics.json", list)
        return rows

    def roll_out(
        self,
        questions: Iterable[Question | str],
        policy: Policy | int,
        *,
        samples: int = 1,
        temperature: float | None = None,
        checkpoint_dir: Path | None = None,
    ) -> list[Trajectory]:
        """Trajectories of a policy over questions, ``samples`` per question, in that order.

        This samples as the stage ``sample``: same prompt, retrieval, limits and seeds. With
        its questions, number of samples and temperature, policy n - 1 gives the trajectories of
        round n, with the settings of that round. ``temperature`` defaults to
        ``sampling.temperature``; 0 is greedy. A string is a question without gold answers.
        ``checkpoint_dir`` keeps finished batches, so that a second call with the same arguments
        continues from them. Raises StoreError when the policy, or the corpus, graph or index, is
        not complete, InputError for repeated questions or less than one sample, and the errors of
        engines and retrievers.

        >>> question = next(iter(run.questions("test")))
        >>> [trajectory] = run.roll_out([question], policy=3, temperature=0)
        >>> print(trajectory.answer, [step.subquery for step in trajectory.steps])
        """
        from pipeline.rollout.policy import read_policy
        from tasks.policy import check_lineage
        from tasks.sample import roll_out_policy

        policy = self._policy(policy)
        records = [_question(question) for question in _listed(questions)]
        with TemporaryDirectory(prefix="steep-roll-out-") as name:
            inputs = {"policy": policy.directory}
            context = self._context("sample", policy.number + 1, Path(name), inputs)
            if checkpoint_dir is not None:
                context = replace(context, checkpoint_dir=checkpoint_dir)
            check_lineage(context.config, policy.directory)
            trajectories, _ = roll_out_policy(
                context,
                records,
                read_policy(policy.directory),
                temperature=(
                    context.config.sampling.temperature if temperature is None else temperature
                ),
                samples=samples,
            )
            return list(trajectories)

    def ask(self, questions: Sequence[str], policy: int | str | None = None) -> list[Trajectory]:
        """The answers of a policy to questions in words, as trajectories in that order.

        This is ``steep ask``: answers as in the evaluation, over the finished indexes of the run.
        A policy is as in `evaluate`; None is the last trained one. Each call opens the engine once,
        in this process and on the GPUs that it sees, while ``steep ask`` leases GPUs and waits for
        other runs. Raises InputError for an unusable policy or question, StoreError when an index
        or a policy is not complete, and the errors of engines and retrievers.

        >>> question = next(iter(run.questions("test"))).question
        >>> [trajectory] = run.ask([question], policy="base")
        >>> print(trajectory.answer, [step.context for step in trajectory.steps])
        """
        from pipeline.rollout.answering import question_record
        from pipeline.serving.asking import asked_policies, open_answering

        records = [question_record(question) for question in _listed(questions)]
        [asked] = asked_policies(self._opened(), [] if policy is None else [str(policy)])
        distinct = {record.question_id: record for record in records}
        with open_answering(asked.context, asked.policy) as opened:
            found = {one.question_id: one for one in opened.answers(iter(distinct.values()))}
        return [found[record.question_id] for record in records]

    def evaluate(
        self,
        policies: Sequence[int | str] = (),
        questions: Path | str | None = None,
        *,
        dataset: str | None = None,
        limit: int | None = None,
        select: Literal["first", "random"] = "first",
        samples: int = 1,
    ) -> list[dict[str, Any]]:
        """Metrics of any policies on any questions: rows as in ``metrics.json``.

        This is ``steep evaluate --policy ... --questions ...``: a policy is its number, or "base",
        "embedded:2", or the directory of an adapter. Evaluations that are complete do not run
        again. Without policies all trained policies are evaluated. Without a file the questions of
        the evaluation split are used. Several ``samples`` of each add pass@k, majority@k and
        diversity. Raises InputError for unusable policies, questions and numbers, StoreError when
        an index or a policy is not complete.

        >>> rows = run.evaluate(["base", 3], "2wiki_dev.json", limit=200)
        """
        from pipeline.serving.evaluations import evaluate

        report, names = self._opened(), [str(policy) for policy in policies]
        file = None if questions is None else Path(questions)
        return evaluate(
            report, names, file, dataset=dataset, limit=limit, select=select, samples=samples
        ).rows

    def score(
        self,
        trajectories: Sequence[Trajectory],
        *,
        round: int = 1,
        verdicts: Sequence[Verdict] | None = None,
    ) -> list[Trajectory]:
        """The trajectories with the configured ``rewards``, None where retrieval failed.

        This is the stage ``score``. Rewards that count judged steps need ``verdicts``.
        ProGraph-R1's step progress continues the trajectories with policy ``round - 1``, which
        sampled them. Raises InputError for missing verdicts, and for progress of another policy.

        >>> sampled = run.roll_out(list(run.questions("test")), policy=2, samples=8)
        >>> scored = run.score(sampled, round=3)
        """
        from tasks.score import run as run_score

        judged = self._settings(round).judged
        if judged and verdicts is None:
            raise InputError("the rewards count judged steps; pass verdicts, one for each step")
        with TemporaryDirectory(prefix="steep-score-") as name:
            folder = Path(name)
            inputs = {"sample": folder / "sample"}
            write_parquet(inputs["sample"] / "trajectories.parquet", trajectories, Trajectory)
            if judged and verdicts is not None:
                inputs["judge"] = folder / "judge"
                place = {trajectory.trajectory_id: n for n, trajectory in enumerate(trajectories)}
                in_order = sorted(verdicts, key=lambda one: place.get(one.id, len(place)))
                write_parquet(inputs["judge"] / "verdicts.parquet", in_order, Verdict)
            context = self._context("score", round, folder, inputs)
            run_score(context)
            return read_records(context.output / "trajectories.parquet", Trajectory)

    def select_pairs(self, scored: Sequence[Trajectory], *, round: int = 1) -> list[Pair]:
        """Preference pairs among scored trajectories of any number of questions.

        This is the stage ``pair``; ``round`` is the round that pairs record. A trajectory whose
        retrieval failed is in no pair. Raises InputError for any other without rewards, and for a
        repeated trajectory id.

        >>> pairs = run.select_pairs(scored)
        """
        from tasks.pair import run as run_pair

        with TemporaryDirectory(prefix="steep-pair-") as name:
            folder = Path(name)
            inputs = {"score": folder / "score"}
            questions = {trajectory.question_id: n for n, trajectory in enumerate(scored)}
            in_order = sorted(scored, key=lambda trajectory: questions[trajectory.question_id])
            write_parquet(inputs["score"] / "trajectories.parquet", in_order, Trajectory)
            context = self._context("pair", round, folder, inputs)
            run_pair(context)
            return read_records(context.output / "pairs.parquet", Pair)

    def _opened(self) -> StageTask:
        """The report's task; raises ConfigError for a run that was opened by its directory."""
        if self._report is None:
            raise ConfigError(
                f"{self.directory} was opened without a configuration; use Run.open(CONFIG)"
            )
        return self._report

    def _settings(self, round: int) -> Config:
        """The configuration of a round, which may be the one after the last."""
        config = self._opened().settings
        if round != config.rounds + 1:  # trajectories of the last policy
            config.check_round(round)
        return config.of_round(round)

    def _of_round(self, stage: str, round: int) -> Path:
        """The directory of a completed stage of a round; raises ConfigError as `_settings` does."""
        if self.config is not None:
            self.config.check_round(round)
        return self.stage(f"{stage}-{round}")

    def _policy(self, policy: Policy | int) -> Policy:
        if isinstance(policy, Policy):
            return policy
        named = {trained.number: trained for trained in self.policies()}
        if policy not in named:
            first = "sft" if self.config is None or self.config.start == "sft" else "start"
            self.stage(f"train-{policy}" if policy else first)  # raises StoreError
        return named[policy]

    def _context(
        self, stage: str, round: int, folder: Path, replaced: Mapping[str, Path]
    ) -> StageContext:
        """The context of a stage of the run that writes below ``folder``.

        ``replaced`` are input directories that take the place of the run's.
        """
        from pipeline.engine.context import StageContext
        from pipeline.engine.stage import needed_here
        from tasks import STAGES
        from tasks.sample import Sampled

        config, report = self._settings(round), self._opened()
        kind = Sampled if stage == Sampled.stage else STAGES[stage]
        task: StageTask = report.clone(kind, round=round)
        inputs = {
            name: self.stage(read.label)
            for name, read in needed_here(task).items()
            if name not in replaced
        }
        output, checkpoint_dir = folder / "output", folder / "checkpoints"
        output.mkdir()
        checkpoint_dir.mkdir()
        return StageContext(
            config=config,
            stage=stage,
            output=output,
            checkpoint_dir=checkpoint_dir,
            inputs={**inputs, **replaced},
            round=round,
            seed=config.seed,
            key=task.key,
        )


def _listed(questions: Iterable[T]) -> Iterable[T]:
    """The questions; raises InputError for one text, whose letters would be questions."""
    if isinstance(questions, str):
        raise InputError(f"the questions are the text {questions!r}; pass a list of questions")
    return questions


def _question(question: Question | str) -> Question:
    if isinstance(question, Question):
        return question
    return Question(question, "questions", question, answers=[], hop="unknown")
