"""SFT and DPO+SFT through TRL: loss and gradient, trained weights, start of a round, stop rule."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pytest

from benchmarks.gpu_check.training import in_file
from pipeline.config import Dpo, Lora, Sft
from pipeline.core.errors import DependencyError, TrainingError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import ChatMessage, Pair, SftExample
from pipeline.engine.files.training_data import HELDOUT, encode_sft_data
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import EncodedSft, encode_pairs
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.history import DROP, History
from pipeline.training.lineage import read_lineage
from pipeline.training.lora import continue_adapter, load_base, save_adapter
from pipeline.training.trainer_args import Training
from tasks.sft import run as run_sft
from tasks.sft import train_sft
from tasks.train import run as run_round
from tests.recorded_progress import RecordedProgress
from tests.training.test_loss_masks import with_control_token
from tests.training.tiny_policy import Run, byte_tokenizer, example, pair, random_adapter

NO_DROPOUT = Lora(dropout=0.0)
CPU = {"dtype": "float32", "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def run(policy_0, tmp_path_factory) -> Run:
    return policy_0.copy(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def first(run):
    """The context of a finished round 1, trained without dropout."""
    context = run.context("train", "first", lora={"dropout": 0.0}, dpo={"round_epochs": [3]})
    context = dataclasses.replace(context, progress=RecordedProgress())
    assert run_round(context)["pairs"] == 8
    return context


def logps_by_hand(model, pairs):
    """log p of the model-written tokens of (chosen, rejected), [P, 2], one row at a time."""
    import torch

    def logp(prompt, ids, mask):
        ids_1T = torch.tensor([prompt + ids])
        logp_TV = model(input_ids=ids_1T).logits[0, :-1].log_softmax(-1)
        picked = logp_TV.gather(-1, ids_1T[0, 1:, None])[len(prompt) - 1 :, 0]
        return (picked * torch.tensor(mask)).sum()

    chosen = [logp(one.prompt_ids, one.chosen_ids, one.chosen_mask) for one in pairs]
    rejected = [logp(one.prompt_ids, one.rejected_ids, one.rejected_mask) for one in pairs]
    return torch.stack([torch.stack(chosen), torch.stack(rejected)], dim=1)


def preference_trainer(run, folder, eta_of, loss="sigmoid"):
    """The trainer of three pairs, whose policy and reference differ, and the pairs."""
    settings = Dpo(
        **CPU, batch_size=3, per_device_batch_size=3, beta=0.5, eta=(0.25,), eta_of=eta_of,
        loss=loss,
    )  # fmt: skip
    other = folder / "other"
    save_adapter(random_adapter(run.base, settings, "dpo", seed=2), other)
    tokenizer = byte_tokenizer()
    records = [pair(tokenizer, n, " e" * (4 * n) + "\n") for n in (1, 2, 3)]
    pairs = in_file(folder, encode_pairs(tokenizer, records))
    policy = random_adapter(run.base, settings, "dpo", seed=1)
    trainer = dpo_trainer(
        policy, tokenizer, pairs, settings, Training(0, folder), number=1, reference_name="r",
        reference_adapter=other,
    )  # fmt: skip
    return trainer, pairs


def loss_and_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    named = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    assert len(named) == 16  # 2 layers x 4 projections x 2 factors of LoRA
    return float(loss), named


def test_the_loss_apo_zero_is_that_of_trl(run, tmp_path):
    """TRL's DPOTrainer with the loss types apo_zero and sft, on the same batch."""
    import torch
    from trl import DPOTrainer

    trainer, _ = preference_trainer(run, tmp_path, "mean", "apo_zero")
    model = trainer.model.train()
    batch = trainer.data_collator(list(trainer.train_dataset))
    ours = loss_and_gradients(model, trainer.compute_loss(model, batch))
    trainer.loss_types, trainer.loss_weights = ["apo_zero", "sft"], [1.0, 0.25]
    theirs = DPOTrainer._compute_loss(trainer, model, batch, False)
    torch.testing.assert_close(ours, loss_and_gradients(model, theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_rejection_sampling_trains_on_the_chosen_sides_alone(run, tmp_path):
    """Other rejected sides give the same policy; nothing is computed for the reference."""
    from pipeline.core.record_io import read_records

    first = run.context("train", "chosen", dpo={"loss": "sft"}, lora={"dropout": 0.0})
    records = read_records(first.inputs["pair"] / "pairs.parquet", Pair)
    both = run_round(first)
    assert (both["pairs"], len(list(first.checkpoint_dir.glob("reference-*")))) == (8, 0)
    chosen = [(len(r.prompt_ids) + len(r.chosen_ids), r.chosen_spans) for r in records]
    assert both["tokens"] == sum(length for length, _ in chosen)
    written = sum(e - s for _, spans in chosen for s, e, writer in spans if writer == "model")
    assert both["trained_tokens"] == written
    for record in records:
        record.rejected, record.rejected_ids, record.rejected_spans = (
            records[0].rejected, records[0].rejected_ids, records[0].rejected_spans,
        )  # fmt: skip
    second = run.context("train", "chosen-2", dpo={"loss": "sft"}, lora={"dropout": 0.0})
    second = with_pairs(second, tmp_path, records)
    assert run_round(second) == both
    lineage = read_lineage(first.output)
    assert lineage.policy == read_lineage(second.output).policy != lineage.parent
    assert (lineage.method, lineage.reference) == ("rejection-sampling", None)


@pytest.mark.parametrize("eta_of", ["sum", "mean"])
def test_loss_and_gradient_match_equations_15_to_17_on_model_tokens(run, tmp_path, eta_of):
    """The padded, grouped batch with precomputed reference against single rows of logits.

    Eq. 15 prints the expectation over pairs of a sum over tokens; "mean" averages over all tokens.
    """
    import torch

    trainer, pairs = preference_trainer(run, tmp_path, eta_of)
    model = trainer.model.train()
    batch = trainer.data_collator(list(trainer.train_dataset))
    loss, gradients = loss_and_gradients(model, trainer.compute_loss(model, batch))
    logps = logps_by_hand(model, pairs)
    base = load_base(run.base, Sft(**CPU, batch_size=1), "sft")
    reference = continue_adapter(base, tmp_path / "other", NO_DROPOUT).eval()
    with torch.no_grad():
        ratios = logps - logps_by_hand(reference, pairs)
    ratios = ratios - logps.detach() + logps
    preference = -torch.nn.functional.logsigmoid(0.5 * (ratios[:, 0] - ratios[:, 1])).mean()
    tokens = sum(sum(item.chosen_mask) for item in pairs)
    imitation = -logps[:, 0].sum() / (len(pairs) if eta_of == "sum" else tokens)
    expected, by_hand = loss_and_gradients(model, preference + 0.25 * imitation)
    assert loss == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(gradients, by_hand, atol=1e-5, rtol=1e-3)


def test_policy_and_reference_agree_before_the_first_step(run, first):
    """Equal policy and reference give L_DPO = log 2."""
    start, *_, last = json.loads((first.output / "log.json").read_text())["history"]
    assert start["loss/dpo"] == pytest.approx(math.log(2), abs=1e-5)
    assert start[DROP] == pytest.approx(0, abs=1e-3)
    assert last["rewards/margins"] > 0.1
    lineage, parent = read_lineage(first.output), read_lineage(run.root / "sft")
    assert (lineage.parent, lineage.reference) == (parent.policy, parent.policy)
    assert (lineage.round, lineage.method) == (1, "dpo+sft")
    assert lineage.policy not in ("", parent.policy)


@pytest.mark.slow
def test_the_reference_can_stay_the_sft_policy(run, first):
    second = run.context("train", "second", dpo={"reference": "sft"}, lora={"dropout": 0.0})
    second = dataclasses.replace(second, round=2, inputs={**second.inputs, "policy": first.output})
    run_round(second)
    lineage = read_lineage(second.output)
    assert lineage.parent == read_lineage(first.output).policy
    assert lineage.reference == read_lineage(run.root / "sft").policy
    row = json.loads((second.output / "log.json").read_text())["history"][0]
    assert row["loss/dpo"] < math.log(2) - 0.01  # policy 1 already prefers these pairs


def test_training_reports_steps_loss_and_margin(first):
    progress = first.progress
    units = [unit for _, unit, _ in progress.starts]
    assert units == ["encoded records", "records under the reference", "steps"]
    assert progress.starts[1] == (8, "records under the reference", 0)
    assert progress.starts[2] == (6, "steps", 0)  # 8 pairs, 3 epochs
    assert progress.done == 6
    assert {"loss", "margin", "accuracy"} <= progress.values.keys()


def test_a_seed_determines_the_policy(run):
    again, other = run.context("sft", "again"), run.context("sft", "other", seed=6)
    for context in (again, other):
        run_sft(context)
    policy = read_lineage(run.root / "sft").policy
    assert read_lineage(again.output).policy == policy != read_lineage(other.output).policy


def with_pairs(context, folder, pairs):
    """The context of a round with other pairs."""
    write_parquet(folder / "pairs.parquet", pairs, Pair)
    return dataclasses.replace(context, inputs={**context.inputs, "pair": folder})


def test_a_round_without_pairs_names_the_remedy(run, tmp_path):
    with pytest.raises(TrainingError, match="round 1 has no preference pairs; raise sampling"):
        run_round(with_pairs(run.context("train", "none"), tmp_path, []))


def test_held_out_examples_that_are_too_long_are_counted(run, tmp_path, capsys):
    """The held-out loss would look like one of all of them."""
    shutil.copytree(run.root / "sft-data", tmp_path / "sft-data")
    rows = [example(0), example(1, observation="e" * 5000), example(2)]
    write_parquet(tmp_path / "sft-data" / "test.parquet", rows, SftExample)
    context = run.context("sft", "long")
    encode_sft_data(
        dataclasses.replace(context, inputs={**context.inputs, "sft-data": tmp_path / "sft-data"})
    )
    assert len(EncodedFile(context.checkpoint_dir / HELDOUT, EncodedSft)) == 2
    said = "1 of 3 held-out examples are longer than sft.max_length and left out of the"
    assert said in capsys.readouterr().out
    encode_sft_data(context)
    assert "held-out" not in capsys.readouterr().out


def test_pairs_of_which_none_can_be_trained_are_counted_by_reason(run, tmp_path):
    """Identical sides, and chosen trajectories that open a turn (``pairs.terms: outcome``)."""
    tokenizer = byte_tokenizer()
    good = pair(tokenizer, 1)
    twin = dataclasses.replace(
        good,
        rejected=good.chosen, rejected_ids=good.chosen_ids, rejected_spans=good.chosen_spans,
    )  # fmt: skip
    opened = with_control_token(tokenizer, "chosen", 2, "<|im_start|>")
    opened = dataclasses.replace(
        opened,
        chosen=[ChatMessage("assistant", opened.chosen[0].content)],
        chosen_rewards={"format": 0.0},
    )
    said = (
        "none of 3 pairs can be trained: 1 have identical sides .*, and in 2 a control token "
        "malforms the chosen trajectory"
    )
    context = run.context("train", "useless", dpo={"over_long": "drop"})
    with pytest.raises(TrainingError, match=said):
        run_round(with_pairs(context, tmp_path, [twin, opened, opened]))


def test_four_bit_on_a_cpu_names_the_setting(run):
    context = run.context("sft", "four-bit", sft={"quantization": "4bit"})
    with pytest.raises(DependencyError, match=r"set sft\.quantization: none"):
        run_sft(context)


def test_training_stops_when_chosen_answers_become_unlikely():
    history = History()
    for step, drop in enumerate([60.0, 0.0, 10.0, 16.0], start=1):
        history.add(step, {"loss": 1.0, DROP: drop})  # the rule needs five steps
    with pytest.raises(TrainingError, match=r"fell 21\.2 nats .* up to step 5., more than 20"):
        history.add(5, {"loss": 1.0, DROP: 20.0})
    with pytest.raises(TrainingError, match="loss is nan at step 6"):
        History().add(6, {"loss": math.nan})


def test_fewer_processes_than_configured_are_refused(run):
    """Otherwise the batch would silently be smaller than configured."""
    context = run.context("sft", "alone", sft={"processes": 2})
    encode_sft_data(context)
    with pytest.raises(TrainingError, match=r"sft\.processes is 2, but 1 joined"):
        train_sft(context)


def test_reference_log_probabilities_are_stored_by_content(run, tmp_path):
    """Stored values are reused for an equal reference and equal pairs only."""
    tokenizer, settings = byte_tokenizer(), Dpo(**CPU, batch_size=2, per_device_batch_size=2)
    progress = RecordedProgress()
    for name, numbers in (("a", (1, 2)), ("a", (1, 2)), ("b", (1, 2)), ("a", (1, 3))):
        pairs = in_file(tmp_path, encode_pairs(tokenizer, [pair(tokenizer, n) for n in numbers]))
        trainer = dpo_trainer(
            random_adapter(run.base, settings, "dpo"), tokenizer, pairs, settings,
            Training(0, tmp_path, History(progress)), number=1, reference_name=name,
        )  # fmt: skip
        assert "ref" not in trainer.model.peft_config
        assert len(trainer.train_dataset["ref_chosen_logps"]) == 2
    assert len(progress.starts) == len(list(tmp_path.glob("reference-*.npy"))) == 3
