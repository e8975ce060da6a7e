"""SFT and DPO+SFT through TRL: loss and gradient, trained weights, start of a round, stop rule."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from pipeline.config import Dpo, Lora, Sft
from pipeline.core.errors import ConfigError, DependencyError, TrainingError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair
from pipeline.run.store import StageKey
from pipeline.stages import launch
from pipeline.stages.files.training_data import encode_sft_data
from pipeline.stages.train import run_round, run_sft, train_sft
from pipeline.training.checkpoints import last_checkpoint
from pipeline.training.cpu_forward import row_groups
from pipeline.training.dpo import dpo_trainer
from pipeline.training.encode import encode_pairs, encode_sft
from pipeline.training.history import DROP, History
from pipeline.training.lineage import policy_fingerprint, read_lineage
from pipeline.training.lora import (
    continue_adapter,
    load_base,
    load_tokenizer,
    locate_base,
    new_adapter,
    save_adapter,
)
from pipeline.training.sft import sft_trainer
from pipeline.training.trainer_args import train
from tests.training.tiny_policy import Run, byte_tokenizer, example, pair, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NO_DROPOUT = Lora(dropout=0.0)
CPU = {"dtype": "float32", "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A base model, data, and policy 0 trained on the data."""
    root = tmp_path_factory.mktemp("training")
    run = Run(root, write_base(root / "base"))
    run.write_data()
    run_sft(run.context("sft", "sft"))
    return run


@pytest.fixture(scope="module")
def first(run):
    """The context of a finished round 1, trained without dropout."""
    context = run.context("train", "first", lora={"dropout": 0.0}, dpo={"round_epochs": [3]})
    assert run_round(context)["pairs"] == 8
    return context


def tensors(policy: Path):
    from safetensors.torch import load_file

    return load_file(policy / "adapter" / "adapter_model.safetensors")


def noisy_adapter(base: Path, directory: Path, seed: int) -> Path:
    """An adapter that changes the model: both factors are random."""
    import torch

    model = new_adapter(load_base(base, Sft(**CPU, batch_size=1), "sft"), NO_DROPOUT, seed)
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.1)
    save_adapter(model, directory)
    return directory


def logps_by_hand(model, pairs):
    """log p of the model-written tokens of (chosen, rejected), [P, 2], one row at a time."""
    import torch

    rows = []
    for item in pairs:
        for ids, mask in (
            (item.chosen_ids, item.chosen_mask),
            (item.rejected_ids, item.rejected_mask),
        ):
            ids_1T = torch.tensor([item.prompt_ids + ids])
            logp_TV = model(input_ids=ids_1T).logits[0, :-1].log_softmax(-1)
            picked = logp_TV.gather(-1, ids_1T[0, 1:, None])[len(item.prompt_ids) - 1 :, 0]
            rows.append((picked * torch.tensor(mask)).sum())
    return torch.stack(rows).view(-1, 2)


@pytest.mark.parametrize("eta_of", ["sum", "mean"])
def test_loss_and_gradient_match_equations_15_to_17_on_model_tokens(run, tmp_path, eta_of):
    """The padded, grouped batch with precomputed reference against single rows of logits.

    Eq. 15 prints the expectation over pairs of a sum over tokens; "mean" averages over all tokens.
    """
    import torch

    start = noisy_adapter(run.base, tmp_path / "start", seed=1)
    other = noisy_adapter(run.base, tmp_path / "other", seed=2)
    settings = Dpo(
        **CPU, batch_size=3, per_device_batch_size=3, beta=0.5, eta=(0.25,),
        eta_of=eta_of,
    )  # fmt: skip
    tokenizer = byte_tokenizer()
    pairs = encode_pairs(tokenizer, [pair(tokenizer, n, " e" * (4 * n) + "\n") for n in (1, 2, 3)])
    base = load_base(run.base, settings, "dpo")
    trainer = dpo_trainer(
        continue_adapter(base, start, NO_DROPOUT), tokenizer, pairs, settings, number=1, seed=0,
        checkpoint_dir=tmp_path, history=History(), reference_name="r", reference_adapter=other,
    )  # fmt: skip
    model = trainer.model.train()
    batch = trainer.data_collator(list(trainer.train_dataset))
    trainer.compute_loss(model, batch).backward()
    adapter = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = {name: value.grad.clone() for name, value in adapter.items()}
    loss = float(trainer.compute_loss(model, batch))

    model.zero_grad()
    logps = logps_by_hand(model, pairs)
    reference = continue_adapter(load_base(run.base, settings, "dpo"), other, NO_DROPOUT).eval()
    with torch.no_grad():
        ratios = logps - logps_by_hand(reference, pairs)
    ratios = ratios - logps.detach() + logps
    preference = -torch.nn.functional.logsigmoid(0.5 * (ratios[:, 0] - ratios[:, 1])).mean()
    tokens = sum(sum(item.chosen_mask) for item in pairs)
    imitation = -logps[:, 0].sum() / (len(pairs) if eta_of == "sum" else tokens)
    expected = preference + 0.25 * imitation
    expected.backward()
    assert loss == pytest.approx(float(expected), abs=1e-4)
    assert len(gradients) == 16  # 2 layers x 4 projections x 2 factors of LoRA
    for name, value in adapter.items():
        torch.testing.assert_close(gradients[name], value.grad, atol=1e-5, rtol=1e-3)


def test_training_changes_only_the_adapter(run, tmp_path):
    import torch

    tokenizer = byte_tokenizer()
    settings = Sft(**CPU, batch_size=4, per_device_batch_size=2)
    base = load_base(run.base, settings, "sft")
    before = {name: value.clone() for name, value in base.state_dict().items()}
    examples = encode_sft(tokenizer, [example(n) for n in range(8)])
    history = History()
    trainer = sft_trainer(
        new_adapter(base, NO_DROPOUT, 0), tokenizer, examples, settings,
        seed=0, checkpoint_dir=tmp_path, history=history,
    )  # fmt: skip
    train(trainer, history, tmp_path)
    after = {
        name.replace(".base_layer", ""): value
        for name, value in trainer.model.get_base_model().state_dict().items()
        if "lora_" not in name
    }
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    trained = dict(trainer.model.named_parameters())
    moved = [n for n in trained if "lora_B" in n and bool(trained[n].abs().sum() > 0)]
    assert len(moved) == 8


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


def test_the_checks_of_the_data_count_what_was_trained_on(run, first):
    """The figures of the checks equal those that the lineage records."""
    for directory, records in (
        (run.context("sft", "sft").output, "examples"),
        (first.output, "pairs"),
    ):
        checked = json.loads((directory / "preflight.json").read_text())
        counts = read_lineage(directory).counts
        assert (checked["data"], checked["records"]) == (records, counts[records])
        [mask] = [check for check in checked["checks"] if check["name"] == "mask coverage"]
        assert f"{counts['trained_tokens']:,} of " in mask["found"]


def test_data_beyond_a_limit_stops_a_round_before_training(run, monkeypatch):
    monkeypatch.setattr("pipeline.training.preflight.MIN_TRAINED", 1.0)
    context = run.context("train", "refused", preflight="refuse")
    with pytest.raises(TrainingError, match=r"preflight is refuse.*mask coverage: .* are trained"):
        run_round(context)
    assert not (context.output / "adapter").exists()


def test_a_round_continues_the_parents_adapter(run):
    """With a learning rate near 0, policy 1 nearly equals policy 0, which differs from the base."""
    import torch

    context = run.context("train", "little-change", dpo={"learning_rate": 1e-7})
    run_round(context)
    parent, child = tensors(run.root / "sft"), tensors(context.output)
    assert any(bool(value.abs().sum() > 0) for name, value in parent.items() if "lora_B" in name)
    for name, value in parent.items():
        torch.testing.assert_close(child[name], value, atol=1e-5, rtol=1e-4)


def test_the_reference_can_stay_the_sft_policy(run, first):
    second = run.context("train", "second", dpo={"reference": "sft"}, lora={"dropout": 0.0})
    second = dataclasses.replace(second, round=2, inputs={**second.inputs, "policy": first.output})
    run_round(second)
    lineage = read_lineage(second.output)
    assert lineage.parent == read_lineage(first.output).policy
    assert lineage.reference == read_lineage(run.root / "sft").policy
    row = json.loads((second.output / "log.json").read_text())["history"][0]
    assert row["loss/dpo"] < math.log(2) - 0.01  # policy 1 already prefers these pairs


def test_a_seed_determines_the_policy(run):
    again, other = run.context("sft", "again"), run.context("sft", "other", seed=6)
    run_sft(again)
    run_sft(other)
    policy = read_lineage(run.root / "sft").policy
    assert read_lineage(again.output).policy == policy != read_lineage(other.output).policy


def test_a_killed_training_run_resumes_to_the_same_policy(run, tmp_path):
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                raise KeyboardInterrupt

    tokenizer = byte_tokenizer()
    examples = encode_sft(tokenizer, [example(n) for n in range(8)])
    settings = Sft(**CPU, batch_size=2, per_device_batch_size=2, epochs=2)

    def trainer(checkpoint_dir: Path, history: History):
        model = new_adapter(load_base(run.base, settings, "sft"), Lora(), 3)
        return sft_trainer(
            model,
            tokenizer,
            examples,
            settings,
            seed=3,
            checkpoint_dir=checkpoint_dir,
            history=history,
        )

    complete, resumed = History(), History()
    complete_trainer = trainer(tmp_path / "complete", complete)
    train(complete_trainer, complete, tmp_path / "complete")
    killed = trainer(tmp_path / "killed", History())
    killed.add_callback(Kill())
    with pytest.raises(KeyboardInterrupt):
        train(killed, History(), tmp_path / "killed")
    assert last_checkpoint(tmp_path / "killed").name == "checkpoint-4"
    resumed_trainer = trainer(tmp_path / "killed", resumed)
    train(resumed_trainer, resumed, tmp_path / "killed")
    first, second = tmp_path / "first", tmp_path / "second"
    save_adapter(complete_trainer.model, first)
    save_adapter(resumed_trainer.model, second)
    assert policy_fingerprint(first, "") == policy_fingerprint(second, "")
    assert [row["loss"] for row in resumed.rows] == [row["loss"] for row in complete.rows]


def test_rows_of_similar_length_are_grouped():
    assert row_groups([900] * 3 + [300] * 3) == [[0, 1, 2], [3, 4, 5]]
    groups = row_groups([4000, 10, 4000, 4000])
    assert groups == [[0, 2], [3], [1]]


def test_a_round_without_pairs_names_the_remedy(run, tmp_path):
    write_parquet(tmp_path / "pairs.parquet", [], Pair)
    context = run.context("train", "none")
    context = dataclasses.replace(context, inputs={**context.inputs, "pair": tmp_path})
    with pytest.raises(TrainingError, match="round 1 has no preference pairs; raise sampling"):
        run_round(context)


def test_an_adapter_over_another_base_is_refused(run, tmp_path):
    shutil.copytree(run.root / "sft", tmp_path / "sft")
    lineage = json.loads((tmp_path / "sft" / "lineage.json").read_text())
    (tmp_path / "sft" / "lineage.json").write_text(json.dumps({**lineage, "base_sha": "other"}))
    context = run.context("train", "other-base")
    context = dataclasses.replace(context, inputs={**context.inputs, "policy": tmp_path / "sft"})
    with pytest.raises(TrainingError, match="train SFT again"):
        run_round(context)


def test_an_adapter_of_another_shape_is_refused(run):
    with pytest.raises(ConfigError, match="train SFT again with the new shape"):
        run_round(run.context("train", "shape", lora={"r": 4}))


def test_four_bit_on_a_cpu_names_the_setting(run):
    context = run.context("sft", "four-bit", sft={"quantization": "4bit"})
    with pytest.raises(DependencyError, match=r"set sft\.quantization: none"):
        run_sft(context)


def test_a_base_model_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DependencyError, match="holds no weights"):
        locate_base(str(tmp_path))


def test_a_base_without_chat_template_is_refused(run, tmp_path):
    shutil.copytree(run.base, tmp_path / "no-template")
    (tmp_path / "no-template" / "chat_template.jinja").unlink()
    model = run.context("sft", "no-template").config.model
    with pytest.raises(ConfigError, match=re.escape("set model.chat_template")):
        load_tokenizer(tmp_path / "no-template", model)
    template = "{{ messages[0].content }}"
    with_template = model.model_copy(update={"chat_template": template})
    assert load_tokenizer(tmp_path / "no-template", with_template).chat_template == template


def test_training_stops_when_chosen_answers_become_unlikely():
    history = History(max_chosen_drop=10.0)
    for step, drop in enumerate([30.0, 0.0, 5.0, 8.0], start=1):
        history.add(step, {"loss": 1.0, DROP: drop})  # the rule needs five steps
    with pytest.raises(TrainingError, match=r"fell 10\.6 nats .* up to step 5.; dpo.max_chosen"):
        history.add(5, {"loss": 1.0, DROP: 10.0})
    with pytest.raises(TrainingError, match="loss is nan at step 6"):
        History().add(6, {"loss": math.nan})


def test_averages_over_zero_tokens_are_omitted_from_the_history(tmp_path):
    history = History()
    history.add(1, {"loss": 1.0, "clipped": math.nan})
    history.write(tmp_path / "log.json")
    assert json.loads((tmp_path / "log.json").read_text())["history"] == [{"step": 1, "loss": 1.0}]


def test_the_launcher_passes_the_whole_context_to_accelerate(run):
    context = run.context("sft", "many", sft={"processes": 2, "dtype": "bfloat16"})
    key = StageKey("sft", 1, {"sft.processes": 2}, inputs={"sft-data": "0"})
    context = dataclasses.replace(context, key=key, shard=1, shards=2, notes={"index": "flat"})
    job = launch.write_job(context, "pipeline.stages.train:train_sft")
    words = launch.command(launch.Plan(str(job), 2, "bf16", "own.json"))[1:]
    assert words == [
        "-m", "pipeline.run.process", "accelerate.commands.launch",
        "--config_file", "own.json", "--gpu_ids", "all",
        "--num_machines", "1", "--num_processes", "2",
        "--mixed_precision", "bf16", "--dynamo_backend", "no",
        "--main_process_port", "0",
        "-m", "pipeline.run.process", "pipeline.stages.launch", str(job),
    ]  # fmt: skip
    assert launch.read_job(job) == ("pipeline.stages.train:train_sft", context)


def test_fewer_processes_than_configured_are_refused(run):
    """Otherwise the batch would silently be smaller than configured."""
    context = run.context("sft", "alone", sft={"processes": 2})
    encode_sft_data(context)
    with pytest.raises(TrainingError, match=r"sft\.processes is 2, but 1 joined"):
        train_sft(context)


def test_reference_log_probabilities_are_stored_by_content(run, tmp_path):
    """Stored values are reused for an equal reference and equal pairs only."""
    tokenizer = byte_tokenizer()
    settings = Dpo(**CPU, batch_size=2, per_device_batch_size=2)
    stored = set()
    for name, numbers in (("a", (1, 2)), ("a", (1, 2)), ("b", (1, 2)), ("a", (1, 3))):
        pairs = encode_pairs(tokenizer, [pair(tokenizer, n) for n in numbers])
        model = continue_adapter(
            load_base(run.base, settings, "dpo"), run.root / "sft" / "adapter", NO_DROPOUT
        )
        trainer = dpo_trainer(
            model, tokenizer, pairs, settings, number=1, seed=0, checkpoint_dir=tmp_path,
            history=History(), reference_name=name,
        )  # fmt: skip
        assert "ref" not in trainer.model.peft_config
        assert len(trainer.train_dataset["ref_chosen_logps"]) == len(pairs) == 2
        stored = {path.name for path in tmp_path.glob("reference-*.npy")}
    assert len(stored) == 3
