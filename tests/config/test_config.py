"""Configuration files: merging, overrides, and the messages for invalid settings."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from pipeline import config as package
from pipeline.config import for_round, load
from pipeline.core.errors import ConfigError
from pipeline.grammars import grammar

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EMBEDDED = CONFIGS / "embedded.yaml"
EXACT_JUDGES = "{over: {backend: closed-world}, under: {backend: closed-world}}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retrieval.kep=5", r"retrieval\.kep: unknown key; retrieval has alpha, chunks"),
        (
            "retrieval={top_k:5}",
            r"retrieval\.top_k:5: unknown key; .* space after the colon.*top_k: 5",
        ),
        ("retrieval.alpha=1.5", r"retrieval\.alpha is 1\.5; set it to a number below 1"),
        (
            "sampling.samples=1",
            r"sampling: samples is 1; pairs need at least 2 per question; raise it",
        ),
        ("rounds=many", r"rounds is 'many'; set it to a whole number"),
        ("retrieval", r"expected key\.key=value"),
        ("graph={source: llm}", r"graph: .*set graph\.model or graph\.endpoint"),
        (
            "graph={source: llm, model: m, endpoint: {base_url: 'http://x/v1', model: m}}",
            r"graph\.model and graph\.endpoint are both set; set one of them to null",
        ),
        ("sft_data.rewriter=llm", r"sft_data: .*set sft_data\.model or sft_data\.endpoint"),
        (
            "graph.endpoint={base_url: 'http://x/v1', model: m, modle: x}",
            r"graph\.endpoint\.modle: unknown key; graph\.endpoint has api_key_env, base_url",
        ),
        (
            "graph.endpoint={base_url: 'http://x/v1', model: m, extra: {stream: true}}",
            r"graph\.endpoint\.extra: stream cannot be set here",
        ),
        ("graph.endpoint={base_url: localhost, model: m}", r"expected an address such as http"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(override, message):
    with pytest.raises(ConfigError, match=message):
        load(EMBEDDED, (override,))


@pytest.mark.parametrize(
    "endpoint",
    [
        "base_url: 'https://me:sk-secret@x/v1'",
        "base_url: 'https://x/v1?key=sk-secret'",
        "base_url: 'http://x/v1', api_key_env: sk-secret",
    ],
)
def test_a_key_in_the_wrong_place_is_refused_without_repeating_it(endpoint):
    with pytest.raises(ConfigError, match="environment variable") as caught:
        load(EMBEDDED, (f"graph.endpoint={{model: m, {endpoint}}}",))
    assert "secret" not in str(caught.value)


def test_a_file_holds_only_what_differs_from_its_base(tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text(f"base: {EMBEDDED}\nretrieval: {{top_k: 3}}\n")
    config, base = load(child), load(EMBEDDED)
    assert config.retrieval.top_k == 3
    assert config.retrieval.tau == base.retrieval.tau
    assert config.name == "child"


def test_a_base_that_names_itself_is_refused(tmp_path):
    loop = tmp_path / "loop.yaml"
    loop.write_text("base: loop.yaml\n")
    with pytest.raises(ConfigError, match="names itself"):
        load(loop)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "just words\n"])
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path, text):
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        load(broken)


def test_every_block_of_a_configuration_is_a_public_name():
    def blocks(block: type[BaseModel]) -> set[type[BaseModel]]:
        """A block and all below it; annotations may hold one in an optional or a tuple."""
        all_blocks = {block}
        for field in block.model_fields.values():
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    all_blocks |= blocks(kind)
        return all_blocks

    names = {block.__name__ for block in blocks(package.Config)}
    assert len(names) > 20
    assert names <= set(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_bases_are_merged_key_by_key_and_overrides_come_last(tmp_path):
    (tmp_path / "middle.yaml").write_text(
        f"base: {EMBEDDED}\nretrieval: {{top_k: 3, tau: 0.1}}\ndpo: {{eta: [0.5]}}\n"
    )
    child = tmp_path / "child.yaml"
    child.write_text("base: middle.yaml\nretrieval: {top_k: 4}\n")
    config = load(child, ("retrieval.tau=0.3", "data.root=there"), data="here")
    assert (config.retrieval.top_k, config.retrieval.tau) == (4, 0.3)
    assert config.dpo.eta == (0.5,)  # a list replaces the list below it
    assert config.data.root == "here"


def test_an_empty_block_takes_the_data_directory_of_the_command_line(tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text(f"base: {EMBEDDED}\ndata:\n")
    assert load(child, data="here").data.root == "here"


def test_numbers_by_hops_are_replaced_as_a_whole(tmp_path):
    """Otherwise a file with sizes for one and two hops would also get its base's sizes for four."""
    child = tmp_path / "child.yaml"
    child.write_text(f"base: {EMBEDDED}\nsft_data: {{sizes: {{1: 5, 2: 3}}}}\n")
    settings = load(child).sft_data
    assert settings.sizes == {1: 5, 2: 3}
    assert settings.test_sizes == load(EMBEDDED).sft_data.test_sizes


def test_the_last_value_of_a_list_is_used_for_all_later_rounds():
    assert [for_round((1.0, 0.5), number) for number in (1, 2, 3)] == [1.0, 0.5, 0.5]


def test_the_examples_in_hiprags_prompt_follow_its_grammar():
    system = load(CONFIGS / "hiprag-qwen2.5-3b.yaml").prompt.system
    steps = re.findall(r"<step>\n.*?</step>", system, re.DOTALL)
    assert ["<search>" in step for step in steps] == [True, False, False]
    for step in steps:
        parsed = grammar("hiprag").parse(f"<think>\n{step}\n</think>\n<answer>a</answer>")
        assert parsed.format_error is None
    parsed = grammar("hiprag").parse(system[system.rindex("<think>") :])
    assert (parsed.format_error, parsed.answer) == (None, "Au")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rewards.kind=tearag", r"hiprag\.yaml: rewards\.kind is 'tearag' and grammar is 'hiprag'"),
        ("judges=null", r"the rewards count judged steps; add the block judges"),
        ("graph={source: none}", None),
        ("pairs.margin=0", r"pairs\.margin is 0; set it to a number above 0"),
    ],
)
def test_hiprags_settings_must_fit_together(override, message):
    if message is None:
        assert load(CONFIGS / "embedded-hiprag.yaml", (override,)).graph.source == "none"
        return
    with pytest.raises(ConfigError, match=message):
        load(CONFIGS / "embedded-hiprag.yaml", (override,))


def test_the_example_in_prographs_prompt_follows_its_grammar():
    system = load(CONFIGS / "prograph-qwen2.5-3b.yaml").prompt.system
    example = system[system.index("<think>", system.index("An example")) :]
    parsed = grammar("prograph").parse(example)
    assert (parsed.format_error, parsed.answer) == (None, "Venice")
    assert [bool(step.query) for step in parsed.steps] == [True, True, False]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("graph={source: none}",), None),
        (
            ("retrieval.variant=semantic", "graph={source: none}", "rewards.prograph.structure=0"),
            None,
        ),
        (("evaluation.retrieval.variant=semantic", "graph={source: none}"), None),
        (("retrieval.variant=semantic", "graph={source: none}", "rounds=0"), None),
        (
            ("retrieval.variant=semantic", "graph={source: none}"),
            r"rewards\.prograph\.structure is 0\.1, and there are no entities to count",
        ),
        (
            ("graph={source: none}", "hypergraph={source: triplets}"),
            r"retrieval\.variant prograph needs a graph",
        ),
        (
            ("sft_data.triplets=llm", "sft_data.model=m"),
            r"sft_data\.triplets is llm, which extracts triplets, and retrieval\.variant prograph shows",
        ),
        (("grammar=tearag",), r"rewards\.kind is 'prograph' and grammar is 'tearag'"),
        (("retrieval.rounds=single",), r"retrieval\.rounds is single, and grammar prograph cannot"),
        (
            (f"judges={EXACT_JUDGES}",),
            "judges is set, and steps in grammar prograph have no conclusion",
        ),
        (
            (f"evaluation.judges={EXACT_JUDGES}",),
            r"evaluation\.judges is set, and steps in grammar",
        ),
    ],
)
def test_prographs_settings_must_fit_together(overrides, message):
    if message is None:
        assert load(CONFIGS / "embedded-prograph.yaml", overrides).graph.source == "none"
        return
    with pytest.raises(ConfigError, match=message):
        load(CONFIGS / "embedded-prograph.yaml", overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("graph={source: none}", r"retrieval\.variant ppr needs a graph"),
        ("sft_data.memory={}", r"grammar is tearag; only hiprag has steps from memory"),
    ],
)
def test_tearag_needs_a_graph_and_has_no_steps_from_memory(override, message):
    with pytest.raises(ConfigError, match=message):
        load(EMBEDDED, (override,))


def test_evaluated_policies_can_have_other_judges_than_the_rounds():
    noisy = load("hiprag-noisy-judges")
    exact = load(CONFIGS / "embedded-hiprag.yaml")
    assert noisy.judges != exact.judges
    assert noisy.evaluation_judges == exact.evaluation_judges == exact.judges
    override = "evaluation.judges={over: {backend: closed-world}, under: {backend: closed-world}}"
    with pytest.raises(
        ConfigError, match=r"evaluation\.judges has backend closed-world, which needs"
    ):
        load(CONFIGS / "musique-sample.yaml", (override,))


def test_terms_of_pairs_are_refused_for_a_reward_that_is_one_number():
    for name in ("embedded-hiprag", "embedded-prograph", "embedded-search-r1"):
        with pytest.raises(ConfigError, match=r"pairs\.terms is outcome, and the reward of"):
            load(CONFIGS / f"{name}.yaml", ("pairs.terms=outcome",))


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
