"""Step-wise GRPO on a cached batch: advantages computed by hand, gradient of the clipped objective."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.training import in_file
from pipeline.config import Grpo
from pipeline.core.errors import ConfigError, TrainingError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Trajectory
from pipeline.rollout.grammars import grammar
from pipeline.training.advantages import (
    EncodedTrajectory,
    Per,
    encode_trajectories,
    standardized_rewards,
)
from pipeline.training.grpo import COLUMNS, grpo_trainer
from pipeline.training.lineage import read_lineage
from pipeline.training.trainer_args import Training
from tasks.train import run as run_round
from tests.smallest import small_trajectory
from tests.training.tiny_policy import Run, byte_tokenizer, random_adapter

TEMPERATURE = 0.8
TOKENIZER = byte_tokenizer()
CPU = {"dtype": "float32", "learning_rate": 1e-2}
ASK, KNOWLEDGE = "<think>a</think><query>b</query>", "\n<knowledge>\nc\n</knowledge>\n"
ANSWER = "<think>d</think><answer>e</answer>"


def policy(base: Path, seed: int = 1):  # type: ignore[no-untyped-def]
    return random_adapter(base, Grpo(**CPU, batch_size=2), "grpo", seed)


def sampled(name: str, rewards: dict[str, object] | None, question: str = "q") -> Trajectory:
    """A trajectory of two turns as the sampler records it; one byte is one token."""
    output = ASK + KNOWLEDGE + ANSWER
    first, last = len(ASK), len(ASK + KNOWLEDGE)
    ids = TOKENIZER(output, add_special_tokens=False)["input_ids"]
    spans = [(0, first, "model"), (first, last, "observation"), (last, len(output), "model")]
    token_spans = [*spans[:2], (last, len(output) + 1, "model")]
    logprobs = [None if first <= at < last else -0.5 for at in range(len(ids) + 1)]
    parsed = grammar("prograph").parse(output, spans)
    return small_trajectory(
        trajectory_id=name, question_id=question, grammar="prograph", output=output, spans=spans,
        prompt_ids=[1, 5, 6], token_ids=[*ids, TOKENIZER.eos_token_id], token_spans=token_spans,
        logprobs=logprobs, steps=parsed.steps, rewards=rewards,
    )  # fmt: skip


def steps(*totals: float) -> dict[str, object]:
    return {"total": sum(totals) / len(totals), "steps": [{"total": total} for total in totals]}


def encoded(trajectories: list[Trajectory], per: Per) -> list[EncodedTrajectory]:
    advantages = standardized_rewards(trajectories, per)
    return list(encode_trajectories(TOKENIZER, trajectories, advantages, vocabulary=259))


def test_inconsistent_trajectories_are_refused() -> None:
    good = sampled("a", steps(1, 2))
    size = len(good.token_ids)
    for changes, message in [
        ({"rewards": {"total": 1.0}}, "record 1, trajectory a: 0 step rewards for 2 turns"),
        ({"rewards": steps(1, float("nan"))}, r"trajectory a: expected finite .* \[1.0, nan\]"),
        ({"logprobs": [None] * size}, "token 0 is model-written and has the log-probability None"),
        ({"logprobs": [0.5] * size}, "the log-probability 0.5; expected a finite"),
        ({"token_ids": [7, *good.token_ids[1:]]}, "trajectory a: ids decode to"),
        ({"token_ids": [-1, *good.token_ids[1:]]}, "token 0 has the id -1; expected 0 to 258"),
        ({"prompt_ids": []}, "trajectory a: prompt: no token ids"),
    ]:
        with pytest.raises(TrainingError, match=message):
            encoded([replace(good, **changes)], "step")


def logps(model, trajectory: EncodedTrajectory | Trajectory):  # type: ignore[no-untyped-def]
    """log p of the completion tokens at the sampling temperature, [T], from plain logits."""
    import torch

    recorded = isinstance(trajectory, Trajectory)
    ids = trajectory.token_ids if recorded else trajectory.completion_ids
    ids_1T = torch.tensor([trajectory.prompt_ids + ids])
    logits_TV = model(input_ids=ids_1T).logits[0, :-1] / TEMPERATURE
    picked = logits_TV.log_softmax(-1).gather(-1, ids_1T[0, 1:, None])[:, 0]
    return picked[len(trajectory.prompt_ids) - 1 :]


def gradients_of(model, loss):  # type: ignore[no-untyped-def]
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def trainer_of(model, trajectories, folder: Path, **changes):  # type: ignore[no-untyped-def]
    settings = Grpo(**{**CPU, "batch_size": 2, "per_device_batch_size": 2, **changes})
    return grpo_trainer(
        model, TOKENIZER, in_file(folder, trajectories), settings, Training(0, folder),
        temperature=TEMPERATURE,
    )  # fmt: skip


def batch_loss(trainer, rows=None):  # type: ignore[no-untyped-def]
    batch = trainer.data_collator(rows or list(trainer.train_dataset))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))


def random_group(rng: random.Random, question: str) -> list[Trajectory]:
    """Two to four trajectories of one to three turns, without probabilities; sometimes of equal rewards."""
    group, same = [], rng.random() < 0.1
    for number in range(rng.randint(2, 4)):
        totals = [1.0 if same else rng.uniform(-1, 2) for _ in range(rng.randint(1, 3))]
        output, spans = "", []
        for turn in range(len(totals)):
            for writer, most in (("model", 6), ("observation", 5)):
                if writer == "model" or turn + 1 < len(totals):
                    text = "".join(rng.choices("abcdefgh", k=rng.randint(1, most)))
                    spans.append((len(output), len(output) + len(text), writer))
                    output += text
        ids = TOKENIZER(output, add_special_tokens=False)["input_ids"]
        prompt_ids = rng.choices(range(3, 259), k=rng.randint(1, 4))
        group.append(
            small_trajectory(
                trajectory_id=f"{question}{number}", question_id=question, grammar="prograph",
                output=output, spans=spans, prompt_ids=prompt_ids, token_ids=ids, token_spans=spans,
                rewards=steps(*totals) | {"total": sum(totals)},
            )
        )  # fmt: skip
    return group


def equation_16(model, groups, reference, per: Per, epsilon: float, beta: float):  # type: ignore[no-untyped-def]
    """The loss (None without one), and whether each token is clipped, from the equations alone.

    Trajectories are records, ``reference`` log p of the reference by id. A batch is the mean over
    trajectories, |y| counts what the policy wrote, and D_KL is estimated token by token as in GRPO.
    """
    import torch

    objectives, clipped = [], []
    for group in groups:
        rewards = [
            torch.tensor([step["total"] for step in one.rewards["steps"]])
            if per == "step"
            else torch.tensor([one.rewards["total"]])
            for one in group
        ]
        pooled = torch.cat(rewards)
        deviation = ((pooled - pooled.mean()) ** 2).mean().sqrt()  # F_norm of eq. 5
        if deviation < 1e-6:
            continue
        for one, own in zip(group, rewards, strict=True):
            advantage = (own - pooled.mean()) / deviation
            now, total, length = logps(model, one), 0.0, 0
            turns = [(start, end) for start, end, writer in one.token_spans if writer == "model"]
            for turn, (start, end) in enumerate(turns):
                value = advantage[turn if per == "step" else 0]
                ratio = torch.exp(now[start:end] - torch.tensor(one.logprobs[start:end]))
                bounded = torch.clamp(ratio, 1 - epsilon, 1 + epsilon)
                gap = torch.tensor(reference[one.trajectory_id][start:end]) - now[start:end]
                total = total + torch.minimum(ratio * value, bounded * value).sum()
                total = total - beta * (torch.exp(gap) - gap - 1).sum()
                clipped += (bounded * value < ratio * value).tolist()
                length += end - start
            objectives.append(total / length)
    return -sum(objectives) / len(objectives) if objectives else None, clipped


@pytest.mark.parametrize(
    ("cases", "of_a_kind"), [(16, 1), pytest.param(300, 20, marks=pytest.mark.slow)]
)
def test_loss_and_gradient_equal_equation_16_on_random_cases(
    cases: int, of_a_kind: int, base: Path, tmp_path: Path
) -> None:
    """From rewards to gradients, per step and per trajectory, clipped or not, with and without KL."""
    import torch

    rng = random.Random(0)
    any_two = [EncodedTrajectory("0", "q", [1], [40], [1], [-1.0], [0.0])] * 2
    epsilons = {0.0: 0.2, 0.3: 0.1}  # by beta
    trainers = {
        beta: trainer_of(policy(base), any_two, tmp_path / str(beta), beta=beta, epsilon=epsilon)
        for beta, epsilon in epsilons.items()
    }
    seen: dict[tuple[Per, bool, float], int] = {}
    while sum(seen.values()) < cases:
        per: Per = rng.choice(["step", "trajectory"])
        beta = rng.choice([0.0, 0.3])
        trainer, epsilon = trainers[beta], epsilons[beta]
        width = rng.choice([0.3 * epsilon, 1.0])  # of the log ratios
        groups = [random_group(rng, name) for name in ("q", "r")[: rng.randint(1, 2)]]
        everyone, reference = [one for group in groups for one in group], {}
        for one in everyone:
            with torch.no_grad():
                now = logps(trainer.model, one).tolist()
            one.logprobs = [min(p + rng.uniform(-width, width), 0.0) for p in now]
            reference[one.trajectory_id] = [p + rng.uniform(-1, 1) for p in now]
        expected, clipped = equation_16(trainer.model, groups, reference, per, epsilon, beta)
        made = encoded(everyone, per)
        if expected is None:
            assert made == []
            continue
        columns = {one.id: {name: getattr(one, name) for name in COLUMNS} for one in made}
        for name, row in columns.items() if beta else ():
            row["reference"] = reference[name]
        loss = batch_loss(trainer, list(columns.values()))
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
        gradient, wanted = (
            torch.cat([value.flatten() for value in gradients_of(trainer.model, one).values()])
            for one in (loss, expected)
        )
        assert float((gradient - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max()) + 1e-7
        case = per, any(clipped), beta
        seen[case] = seen.get(case, 0) + 1
    assert len(seen) == 8
    assert min(seen.values()) >= of_a_kind, seen


def test_the_kl_is_measured_from_the_start_of_the_round(base: Path, tmp_path: Path) -> None:
    """The KL is 0 at the start; after a change it is r/p - log(r/p) - 1 for every token."""
    import torch

    model = policy(base)
    blank = EncodedTrajectory("0", "q", [1, 7], [40, 41, 42], [1, 0, 1], [], [0.0] * 3)
    start = logps(model, blank).detach()
    trajectories = [replace(blank, old_logprobs=start.tolist(), id=str(n)) for n in range(2)]
    trainer = trainer_of(model, trajectories, tmp_path, beta=0.3)
    assert set(trainer.model.peft_config) == {"default"}
    assert float(batch_loss(trainer).detach()) == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        for name, value in trainer.model.named_parameters():
            if "lora_B" in name:
                value.add_(0.05)
    gap = (start - logps(trainer.model, blank))[[0, 2]]
    expected = 0.3 * (gap.exp() - gap - 1).mean()
    assert float(batch_loss(trainer).detach()) == pytest.approx(float(expected.detach()), rel=1e-3)


def test_the_stage_trains_policy_n_on_scored_trajectories_of_policy_n_minus_1(
    policy_0: Run, tmp_path: Path
) -> None:
    run = policy_0.copy(tmp_path)
    for name in ("score", "equal"):
        (tmp_path / name).mkdir()
    scored = [sampled(str(number), steps(number, 1)) for number in range(4)]
    scored.append(sampled("failed", None))  # a retrieval failed
    write_parquet(tmp_path / "score" / "trajectories.parquet", scored, Trajectory)
    blocks: dict[str, Any] = {
        "grammar": "prograph", "objective": "grpo",
        "sampling": {"temperature": TEMPERATURE}, "lora": {"dropout": 0.0},
        "grpo": {**CPU, "batch_size": 2, "per_device_batch_size": 2, "epochs": 2, "beta": 0.1},
    }  # fmt: skip
    context = run.context("train", "train", **blocks)
    counts = run_round(context)
    assert (counts["paths"], counts["left_out"], counts["over_long"]) == (4, 1, 0)
    assert counts["trained_tokens"] == 4 * (len(ASK) + len(ANSWER) + 1)
    lineage, parent = read_lineage(context.output), read_lineage(tmp_path / "sft")
    assert (lineage.parent, lineage.reference, lineage.round) == (parent.policy, parent.policy, 1)
    assert (lineage.method, lineage.settings["per"]) == ("grpo", "step")
    assert lineage.policy not in ("", parent.policy)
    history = json.loads((context.output / "log.json").read_text())["history"]
    assert [row["step"] for row in history] == [1, 2, 3, 4]
    assert history[0]["kl"] == pytest.approx(0.0, abs=1e-5)
    assert {"loss", "grad_norm", "entropy", "clip_ratio/region_mean"} <= history[0].keys()

    equal = [sampled(str(number), steps(1, 1)) for number in range(4)]
    write_parquet(tmp_path / "equal" / "trajectories.parquet", equal, Trajectory)
    inputs = {**context.inputs, "score": tmp_path / "equal"}
    with pytest.raises(TrainingError, match="the 4 trajectories have equal rewards"):
        run_round(replace(context, inputs=inputs))


def test_greedy_trajectories_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"raise sampling\.temperature"):
        grpo_trainer(
            None, TOKENIZER, [], Grpo(**CPU, batch_size=2), Training(0, tmp_path), temperature=0.0
        )
