"""``steep export``: pairs and policies that other libraries load and train on."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.record_io import as_json, write_jsonl, write_parquet
from pipeline.core.records import ChatMessage, Chunk, Pair, Trajectory
from pipeline.core.text import file_name
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.pairs.candidates import pair_of
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.steps import tool_format
from tasks import task_for
from tasks.policy import policy
from tests.cli.malformed_inputs import steep
from tests.conversations.shipped_templates import byte_tokenizer as template_tokenizer
from tests.conversations.shipped_templates import template_files
from tests.docs.test_howto_pages import blocks
from tests.llm.small_models import small_model
from tests.smallest import write_paired, write_scored
from tests.stages.fabricated_run import DOCUMENT, trajectory
from tests.tasks.small_run import commit_policy, settings
from tests.training.tiny_policy import byte_tokenizer, pair, write_base

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return tmp_path


def written(pairs: list[Pair]) -> str:
    """A file of pairs as ``steep pair`` writes them."""
    write_jsonl("pairs.jsonl", [as_json(one) | {"chosen_total": 1.0} for one in pairs])
    return "pairs.jsonl"


def loaded(directory: str) -> Any:
    from datasets import load_dataset

    return load_dataset(str(Path(directory).absolute()), split="train", cache_dir="cache")


def exported(form: str, pairs: list[Pair]) -> Any:
    status, printed, complaint = steep(
        ["export", "pairs", written(pairs), "-o", form, "--to", form]
    )
    assert status == 0, complaint
    assert f"{len(pairs)} pairs" in printed
    return loaded(form)


def refused(*arguments: str) -> str:
    """The complaint about ``steep export`` with these arguments."""
    status, _, complaint = steep(["export", *arguments])
    assert status == 2
    return complaint


def three_pairs() -> list[Pair]:
    tokenizer = byte_tokenizer()
    return [
        dataclasses.replace(
            pair(tokenizer, n, " e" * (4 * n) + "\n"),
            chosen_rewards={"total": n, "memory": {"context": [0.5]}},
            rejected_rewards={"total": 0.5, "format": None},
        )
        for n in (1, 2, 3)
    ]


def exported_trainer() -> Any:
    """The module beside the pairs, by its file: it needs nothing of steep."""
    specification = importlib.util.spec_from_file_location("exported", "trl/recorded_ids.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert "pipeline" not in Path("trl/recorded_ids.py").read_text()
    return module


SEARCH = tool_format("search-r1").tool


def conversation_tokenizer() -> Any:
    files = {file.stem: file for file in template_files()}
    tokenizer = template_tokenizer(files["qwen2_5"].read_text())
    tokenizer.pad_token, tokenizer.eos_token = "<eos>", "<|im_end|>"
    return tokenizer


def conversation_pair(tokenizer: Any, number: int) -> Pair:
    """Two answers after the same search, as a pair of the stage."""
    template = ChatTemplate(tokenizer, [SEARCH])
    made = {"name": "search", "arguments": {"query": "who?"}}
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": f"Q{number}?"}]
    sides = []
    for answer in ("Rome", "I do not know" * number):
        messages = [
            *prompt,
            {"role": "assistant", "content": "I look.", "tool_calls": [{"function": made}]},
            {"role": "tool", "content": "Doc 1 <|im_end|> " + "e" * number},
            {"role": "assistant", "content": f"Answer: {answer}"},
        ]
        built = template.build(messages)
        assert built.mismatch == ""
        sides.append(
            Trajectory(
                f"{answer[0]}{number}", f"q{number}", "toy", "Q?", "multi", ["x"], [], "search-r1", "",
                messages=json.dumps(messages), policy="p", prompt_ids=built.prompt_ids,
                token_ids=built.token_ids, token_spans=built.token_spans,
            )
        )  # fmt: skip
    return pair_of(*sides, "easy", [], round=1, tools=json.dumps([SEARCH]))


def test_exported_conversations_have_calls_and_tools_that_a_template_writes(folder: Path) -> None:
    tokenizer = conversation_tokenizer()
    rows = exported("trl", [conversation_pair(tokenizer, 1)])
    messages = [*rows[0]["prompt"], *rows[0]["chosen"]]
    for message in messages:
        for made in message.get("tool_calls") or ():
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    text = tokenizer.apply_chat_template(
        messages, tools=json.loads(rows[0]["tools"]), tokenize=False
    )
    ids = rows[0]["prompt_ids"] + rows[0]["chosen_ids"]
    assert text.replace("<|im_end|> e", "&lt;|im_end|&gt; e").startswith(tokenizer.decode(ids))
    labelled = exported("kto", [conversation_pair(tokenizer, 1)])
    assert [len(row["completion"]) for row in labelled] == [3, 3]
    assert json.loads(labelled[0]["tools"]) == [SEARCH]
    file = written([conversation_pair(tokenizer, 1)])
    told = refused("pairs", file, "-o", "lf", "--to", "llama-factory")
    assert "conversations with tool calls; use --to trl or kto" in told


@pytest.mark.parametrize("form", ["tags", "tools"])
def test_trl_trains_exported_pairs_to_the_loss_of_a_round(form: str, folder: Path) -> None:
    """Policy and reference differ after the first step, so the second loss shows ids and masks."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig

    from pipeline.training.dpo import preference_loss

    tokenizer = byte_tokenizer() if form == "tags" else conversation_tokenizer()
    base = write_base(folder / "base", vocabulary=len(tokenizer))
    pairs = three_pairs()
    if form == "tools":
        pairs = [conversation_pair(tokenizer, n) for n in (1, 2, 3)]
    rows, module = exported("trl", pairs), exported_trainer()
    reference = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * torch.randn_like(weight)
    trainer = module.RecordedIdsTrainer(
        model, reference, data_collator=module.RecordedIdsCollator(tokenizer.pad_token_id),
        args=DPOConfig(
            str(folder / "out"), loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.25], beta=0.5,
            max_length=None, per_device_train_batch_size=3, use_cpu=True, bf16=False, report_to=[],
        ),
        train_dataset=rows, processing_class=tokenizer,
    )  # fmt: skip
    (batch,) = trainer.get_train_dataloader()  # drops the columns that the trainer does not know
    model.eval()
    found = trainer.compute_loss(model, batch)

    def logps(one: Any) -> Any:
        ids = batch["input_ids"]
        with torch.no_grad():
            logits = one(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0] * mask

    mask = batch["completion_mask"][:, 1:]
    loss = preference_loss(
        logps(model), mask, logps(reference).sum(1).chunk(2), beta=0.5, eta=0.25, eta_of="mean"
    )
    assert float(found) == pytest.approx(float(loss.total), abs=1e-5)
    written_by_policy = sum(sum(row["chosen_mask"]) for row in rows)
    assert int(mask[:3].sum()) == written_by_policy < sum(len(row["chosen_ids"]) for row in rows)


def test_reward_terms_are_columns_of_numbers(folder: Path) -> None:
    rows = exported("parquet", three_pairs())
    assert rows[1]["chosen_rewards"] == {"total": 2.0}  # lists are no numbers
    assert rows[1]["rejected_rewards"] == {"total": 0.5}
    assert rows[0]["policy"] == "p"


def test_a_ranking_data_set_names_its_columns(folder: Path) -> None:
    rows = exported("llama-factory", three_pairs())
    information = json.loads(Path("llama-factory/dataset_info.json").read_text())["steep_pairs"]
    assert set(information["columns"].values()) == {*rows.column_names}
    assert (Path("llama-factory") / information["file_name"]).is_file()
    tags, row = information["tags"], rows[0]
    assert row["chosen"][tags["role_tag"]] == tags["assistant_tag"]
    assert row["prompt"][-1][tags["role_tag"]] == tags["user_tag"]


def test_a_trajectory_is_labelled_by_its_id_and_texts_unless_it_is_on_both_sides(
    folder: Path,
) -> None:
    """Step pairs have parts of a trajectory, and files of two rounds may use an id twice."""
    first, second, third = three_pairs()
    text = first.chosen[0].content

    def side(number: int, side: str, content: str) -> Pair:
        """The second pair, with a text of trajectory ``c1`` on one side."""
        changes = {f"{side}_id": "c1", side: [ChatMessage("assistant", content)]}
        return dataclasses.replace(second, **changes, prompt=first.prompt)

    both = side(0, "rejected", text)  # which the first pair prefers
    parts = side(1, "chosen", text[:4]), side(2, "rejected", text[:8])
    again = side(3, "rejected", text.upper())
    rows = exported("kto", [first, both, *parts, again, third])
    labels = {(row["trajectory_id"], row["completion"][0]["content"]): row["label"] for row in rows}
    assert len(rows) == len(labels) == 8
    of_first = {content: label for (name, content), label in labels.items() if name == "c1"}
    assert of_first == {text[:4]: True, text[:8]: False, text.upper(): False}


@pytest.mark.parametrize("name", ["a: b #1.jsonl", 'a\n"é" 🙂.jsonl'])
def test_pairs_of_any_file_name_load_with_it_as_title(folder: Path, name: str) -> None:
    Path(written(three_pairs())).rename(name)
    assert steep(["export", "pairs", name, "-o", "out"])[0] == 0
    assert len(loaded("out")) == 3
    header = yaml.safe_load(Path("out/README.md").read_text().split("---\n")[1])
    assert header["pretty_name"] == f"Pairs of {file_name(name)}"


def test_pairs_without_ids_say_that_there_is_no_mask(folder: Path) -> None:
    texts = [
        dataclasses.replace(one, prompt_ids=[], chosen_ids=[], rejected_ids=[], chosen_spans=[], rejected_spans=[])
        for one in three_pairs()
    ]  # fmt: skip
    rows = exported("trl", texts)
    assert "prompt_ids" not in rows.column_names
    assert not Path("trl/recorded_ids.py").exists()
    status, printed, _ = steep(
        ["export", "pairs", written([*texts, *three_pairs()]), "-o", "some", "--to", "parquet"]
    )
    assert (status, printed) == (0, "some: 6 pairs, 3 without token ids, so no row has a mask\n")
    assert "Mind the mask" in Path("trl/README.md").read_text()


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([], "there is no pair to export; the stage pair and steep pair say why"),
        ([dataclasses.replace(three_pairs()[0], chosen=[])], "c1 > r1 has no texts"),
    ],
)
def test_pairs_that_cannot_be_exported_leave_no_directory(
    folder: Path, pairs: list[Pair], complaint: str
) -> None:
    assert complaint in refused("pairs", written(pairs), "-o", "out")
    assert [path.name for path in folder.iterdir()] == ["pairs.jsonl"]


def test_a_folder_that_holds_anything_is_kept(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / ".hidden").write_text("precious")
    (folder / "link").symlink_to("out")
    pairs = written(three_pairs())
    for taken in ("out", "link", "out/.hidden"):
        told = refused("pairs", pairs, "-o", taken)
        assert f"{taken} exists; name a new directory" in told
    assert (folder / "out" / ".hidden").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == ["link", "out", "pairs.jsonl"]


def committed(overrides: tuple[str, ...], stage: str, write: Callable[[Path], object]) -> None:
    task = task_for(stage, "embedded", overrides, round=1 if stage != "corpus" else None)
    output = task.settings.run_dir / "written"
    write(output)
    task.directory.parent.mkdir(parents=True, exist_ok=True)
    task.store.commit(task.key, output, {"counts": {"rows": 1}})


def test_answers_have_flashrags_form_and_pairs_name_their_sources(folder: Path) -> None:
    overrides = settings(small_model(folder / "base"), 512, "rounds=1")
    options = [word for setting in overrides for word in ("--set", setting)]
    sampled = [trajectory("q1", "Ostar", steps=2, name="c1"), trajectory("q2", None, name="r1")]
    chunk = Chunk("c1", "Vell", "Vell is a harbour city.", "d1", "docs/vell.pdf#page=3")
    committed(overrides, "corpus", lambda output: write_chunks(output, [chunk]))
    for stage in ("score", "evaluate-policy"):
        committed(overrides, stage, lambda to: write_scored(to / "trajectories.parquet", sampled))
    committed(overrides, "pair", lambda to: write_paired(to / "pairs.parquet", three_pairs()[:1]))
    for call in (["answers"], ["pairs", "--to", "parquet"]):
        status, _, told = steep(["export", *call, "--round", "1", "-o", call[0], *options])
        assert status == 0, told
    items = json.loads(Path("answers/intermediate_data.json").read_text())
    assert [item["id"] for item in items] == ["q1", "q2"]
    assert items[0]["golden_answers"] == ["Ostar"]
    output = items[0]["output"]
    assert output["pred"] == "Ostar"
    assert output["metric_score"] == {"em": 1.0, "f1": 1.0, "acc": 1.0}
    origin = "docs/vell.pdf#page=3"
    assert output["retrieval_result"] == [
        {"id": "c1", "contents": f"Vell\n{DOCUMENT}", "score": 0.5, "source": origin}
    ]
    assert items[0]["metadata"]["searches"] == 2
    assert items[1]["output"]["pred"] == ""
    assert Path("answers/metric_score.txt").read_text() == "em: 0.5\nf1: 0.5\nacc: 0.5\n"
    (row,) = loaded("pairs")
    source = {"id": "c1", "title": "Vell", "source": origin}
    assert (row["chosen_id"], row["chosen_sources"]) == ("c1", [source])
    assert "passages that the trajectories retrieved" in Path("pairs/README.md").read_text()


def test_the_pairs_of_a_round_and_its_policy_are_exported(folder: Path) -> None:
    """As the page says, PEFT loads the adapter from any folder; merged, both have equal logits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = small_model(folder / "base")
    overrides = settings(Path("base"), 512, "rounds=1")
    options = [word for setting in overrides for word in ("--set", setting)]
    for command in (["pairs", "--round", "1"], ["model"]):
        told = refused(*command, "-o", "early", *options)
        assert "pair-1 is not done; run: steep run" in told or "train one with" in told
    committed(
        overrides, "pair", lambda to: write_parquet(to / "pairs.parquet", three_pairs(), Pair)
    )
    commit_policy(policy(task_for("pair", "embedded", overrides, round=1), 1), base, seed=1)
    page = blocks("use-a-policy.md", "")[2].replace("--round 2", "--round 1").splitlines()
    for call in ("steep export pairs --round 1 -o trl", *page):
        status, _, complaint = steep([*shlex.split(call, comments=True)[1:], *options])
        assert status == 0, complaint
    assert loaded("trl").num_rows == 3
    away = folder / "away"
    away.mkdir()
    os.chdir(away)
    [program] = blocks("use-a-policy.md", "python")
    loading: dict[str, Any] = {}
    exec(program.replace('"policy"', '"../policy"'), loading)
    adapted, tokenizer = loading["model"].float(), loading["tokenizer"]
    merged = AutoModelForCausalLM.from_pretrained("../merged", dtype=torch.float32)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained("../merged").chat_template
    assert tokenizer.chat_template
    ids = tokenizer("the founder", return_tensors="pt")
    with torch.no_grad():
        expected, found = adapted(**ids).logits, merged(**ids).logits
        with adapted.disable_adapter():
            untrained = adapted(**ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert not torch.allclose(untrained, expected, atol=1e-4)
    card = (folder / "policy" / "README.md").read_text()
    assert f"base_model: {base}" in card
    assert "was not evaluated" in card
    assert "| questions | musique, nq, hotpotqa |" in card
