"""Configuration files: merging, overrides, and the messages for invalid settings."""

import re
from pathlib import Path

import pytest

from pipeline.config import Sft, for_round, load
from pipeline.config.machine_choices import processes_on
from pipeline.config.variants import variants
from pipeline.core.errors import ConfigError
from pipeline.rollout.grammars import grammar
from pipeline.training.collate import accumulation_steps

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EMBEDDED = CONFIGS / "embedded.yaml"
FIVE = "retrieval={variant: semantic, top_k: 5, reranker: {kind: biencoder}}"
EXACT_JUDGES = "{over: {backend: closed-world}, under: {backend: closed-world}}"


def test_bases_are_merged_key_by_key_and_overrides_come_last(tmp_path):
    (tmp_path / "middle.yaml").write_text(
        f"base: {EMBEDDED}\nretrieval: {{top_k: 3, tau: 0.1}}\ndpo: {{eta: [0.5]}}\n"
        'sft_data: {sizes: {"2": 9}}\n'
    )
    child = tmp_path / "child.yaml"
    child.write_text("base: middle.yaml\nretrieval: {top_k: 4}\nsft_data: {test_sizes: {}}\n")
    config = load(child, ("retrieval.tau=0.3", "data={}", "data.root=there"), data="here")
    assert (config.retrieval.top_k, config.retrieval.tau) == (4, 0.3)
    assert config.dpo.eta == (0.5,)  # a list replaces the list below it
    assert config.data.root == "here"
    # So does a mapping by number of hops, also an empty one.
    assert (config.sft_data.sizes, config.sft_data.test_sizes) == ({2: 9}, {})


def test_the_last_value_of_a_list_is_used_for_all_later_rounds():
    assert [for_round((1.0, 0.5), number) for number in (1, 2, 3)] == [1.0, 0.5, 0.5]


def test_the_examples_in_hiprags_prompt_follow_its_grammar():
    system = load(CONFIGS / "hiprag-qwen2.5-3b.yaml").prompt.user
    steps = re.findall(r"<step>\n.*?</step>", system, re.DOTALL)
    assert ["<search>" in step for step in steps] == [True, False, False]
    for step in steps:
        parsed = grammar("hiprag").parse(f"<think>\n{step}\n</think>\n<answer>a</answer>")
        assert parsed.format_error is None
    parsed = grammar("hiprag").parse(system[system.rindex("<think>") : system.rindex("Question:")])
    assert (parsed.format_error, parsed.answer) == (None, "Au")


def test_the_example_in_prographs_prompt_follows_its_grammar():
    system = load(CONFIGS / "prograph-qwen2.5-3b.yaml").prompt.user
    example = system[
        system.index("<think>", system.index("An example")) : system.rindex("Question:")
    ]
    parsed = grammar("prograph").parse(example)
    assert (parsed.format_error, parsed.answer) == (None, "Venice")
    assert [bool(step.query) for step in parsed.steps] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("embedded", ["graph={source: none}"], r"retrieval\.variant ppr needs a graph"),
        ("embedded", ["sft_data.memory={}"], r"grammar is tearag; only hiprag has steps from memory"),
        ("embedded", ["graph.source=none", "retrieval.variant=semantic", "evaluation.retrieval.variant=ppr"],
         r"evaluation: graph\.source is none, and retrieval\.variant ppr needs a graph"),
        ("embedded", ["start=base", "dpo.reference=sft"],
         r"so that the run has no policy 0 \(SFT\); set dpo\.reference"),
        ("embedded", ["dpo.loss=sft", "dpo.eta=[1, 0]"], r"loss is sft, which is the SFT term alone"),
        ("embedded", ["dpo.loss=sft", "dpo.eta_of=sum"], r"eta_of to mean and reference to previous"),
        ("embedded", ["dpo.loss=sft", "dpo.reference=sft"], r"and eta is \[130\.0\], eta_of mean, ref"),
        ("embedded", ["rounds=0", "until=pair"], r"until is pair, and rounds is 0, so that no round"),
        ("embedded-hiprag", ["judges=null"], r"the rewards count judged steps; add the block judges"),
        ("embedded-hiprag", ["pairs.terms=outcome"], r"pairs\.terms is outcome, and the reward of"),
        ("embedded-prograph", ["retrieval.variant=semantic", "retrieval.chunks=10", "graph={source: none}"],
         r"rewards\.prograph\.structure is 0\.1, and there are no entities to count"),
        ("embedded-prograph", ["graph={source: none}", "hypergraph={source: triplets}"],
         r"retrieval\.variant prograph needs a graph"),
        ("embedded-prograph", ["sft_data.triplets=llm", "sft_data.model=m"],
         r"sft_data\.triplets is llm, which extracts triplets, and retrieval\.variant prograph"),
        ("embedded-prograph", ["rewards.prograph.outcome=gated", "format=tools"],
         r"prograph\.outcome is gated, which reads tags, and format"),
        ("embedded-prograph", ["retrieval.rounds=single"], r"rounds is single, and grammar prograph"),
        ("embedded-prograph", [f"evaluation.judges={EXACT_JUDGES}"],
         r"evaluation\.judges is set, and steps in grammar prograph have no conclusion"),
        ("musique-sample", [f"evaluation.judges={EXACT_JUDGES}"],
         r"evaluation\.judges has backend closed-world, which needs"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together_are_refused(name, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(CONFIGS / f"{name}.yaml", tuple(overrides))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("embedded-hiprag", []),
        ("embedded-prograph", []),
        ("embedded-prograph", [FIVE, "rewards.prograph.structure=0"]),
        ("embedded-prograph", [f"evaluation.{FIVE}"]),
        ("embedded-prograph", [FIVE, "rounds=0"]),
    ],
)
def test_a_method_that_reads_no_triplets_needs_no_graph(name, overrides):
    assert load(CONFIGS / f"{name}.yaml", ("graph={source: none}", *overrides)).rounds >= 0


def test_the_block_that_grpo_asks_for_is_enough():
    block = "grpo={learning_rate: 1.0e-5, batch_size: 128, per: trajectory}"
    for name in ("embedded", "embedded-search-r1"):
        overrides = ("objective=grpo", "sampling.temperature=1")
        with pytest.raises(ConfigError) as refused:
            load(CONFIGS / f"{name}.yaml", overrides)
        assert block.replace("=", ": ", 1) in str(refused.value)
        assert load(CONFIGS / f"{name}.yaml", (*overrides, block)).trainer.batch_size == 128


@pytest.mark.parametrize(
    "name", ["embedded-hiprag", "hiprag-qwen2.5-3b", "hiprag-qwen2.5-7b", "single-gpu-24gb-hiprag"]
)
def test_hiprag_needs_only_the_objective_to_train_with_grpo(name):
    """Table 2 has rows of GRPO."""
    config = load(CONFIGS / f"{name}.yaml", ("objective=grpo", "data.root=/data"))
    assert config.trainer is config.grpo
    assert config.trainer.processes <= max(config.gpus, config.workers or 1)


@pytest.mark.parametrize(("gpus", "expected"), [(0, 4), (1, 1), (2, 2), (3, 2), (4, 4), (8, 4)])
def test_each_process_has_a_gpu_and_the_micro_batches_fill_the_batch(gpus, expected):
    settings = {"learning_rate": 1e-4, "batch_size": 48, "per_device_batch_size": 2, "processes": 4}
    count = processes_on(Sft(**settings), gpus)
    assert count == expected
    micro_batches = accumulation_steps(48, per_device=2, processes=count, block="sft")
    assert 2 * count * micro_batches == 48


@pytest.mark.parametrize(
    "name", ["hiprag-qwen2.5-3b", "prograph-qwen2.5-3b", "single-gpu-24gb-search-r1"]
)
def test_other_methods_are_instructed_in_the_users_turn_as_by_their_code(name):
    [message] = load(name).prompt.messages("Who built it?")
    assert message.role == "user"
    assert "if you are sure" not in message.content.lower()
    assert "as you want" in message.content or "as you need" in message.content
    assert message.content.rstrip().endswith("Question: Who built it?")


@pytest.mark.parametrize("name", variants())
def test_a_prompt_of_one_answer_replaces_the_whole_prompt_of_its_base(name):
    config = load(name, ("data.root=/data",))
    if config.retrieval.variant == "none" or config.retrieval.rounds == "prompt":
        assert config.prompt.user == "{question}"
        assert "answer" in config.prompt.system
