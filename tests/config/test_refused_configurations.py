"""Bad names, directories, files and overrides are refused in one sentence, without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.core.errors import ConfigError
from pipeline.core.shipped import CONFIGURATIONS

EMBEDDED = CONFIGURATIONS / "embedded.yaml"
HIPRAG = CONFIGURATIONS / "embedded-hiprag.yaml"


def child(directory: Path, text: str, name: str = "child.yaml") -> Path:
    """A configuration that changes some settings of the embedded one."""
    file = directory / name
    file.write_text(f"base: {EMBEDDED}\n{text}")
    return file


@pytest.mark.parametrize(
    "name",
    ["..", ".", '""', "a/b", "-x", ".hidden", "a b", '"a\\0"', '"a\\n"', "x" * 101, "é", "3"],
)
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        load(EMBEDDED, (f"name={name}",))


def test_a_file_whose_name_cannot_name_a_run_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 'my run'; set name"):
        load(child(tmp_path, "rounds: 1\n", "my run.yaml"))
    assert load(child(tmp_path, "name: my-run\n", "my run.yaml")).name == "my-run"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=true", "rounds is true; set it to a whole number"),
        ("rounds=3.0", "rounds is 3.0; set it to a whole number"),
        ("dpo.eta=[-5]", r"dpo\.eta\.0 is -5; set it to a number of at least 0"),
        ("dpo.beta=.nan", r"dpo\.beta is nan; set it to a finite number"),
        ("sft.gradient_checkpointing=1", "gradient_checkpointing is 1; set it to true or false"),
        ("sft_data.sizes={3: 0, 4: 0}", r"sizes: the numbers of examples sum to 0"),
        ('sft_data.sizes={3: 5, "3": 6}', "a number of hops is there twice"),
        ("model.base=3", r"model\.base is 3; set it to a text"),
        ('data.root="a\\0b"', r"data\.root: the text holds the character U\+0000; remove it"),
        ("dpo={learning_rate: 1, learning_rate: 2}", r"--set dpo: .*the key learning_rate is also"),
        ("rewards.tearag={consistency: 0, subquery: 0, context: 0, summary: 0}",
         r"rewards\.tearag give a process of at most 0, and multi-hop pairs need 0\.7 \(pairs\.multi_"
         r"process, .*set pairs\.terms to outcome-format"),
        ("retrieval.kep=5", r"retrieval\.kep: unknown key; retrieval has alpha, chunk_scores, chunks"),
        ("retrieval={top_k:5, reranker: {kind: biencoder}}",
         r"retrieval\.top_k:5: unknown key; .* space after the colon.*top_k: 5"),
        ("retrieval.alpha=1.5", r"retrieval\.alpha is 1\.5; set it to a number below 1"),
        ("sampling.samples=1", r"sampling\.samples is 1; set it to a number of at least 2"),
        ("graph={source: llm}", r"graph: .*set graph\.model or graph\.endpoint"),
        ("graph={source: llm, model: m, endpoint: {base_url: 'http://x/v1', model: m}}",
         r"graph\.model and graph\.endpoint are both set; set one of them to null"),
        ("graph.endpoint={base_url: 'http://x/v1', model: m, extra: {stream: true}}",
         r"graph\.endpoint\.extra: stream cannot be set here"),
        ("model.thinking=true", r"model\.thinking is set, and format is tags"),
        ("prompt.user=Answer the question.", r"prompt\.user: the text does not hold {question}"),
        ("evaluation.retrieval.top_k=0", r"evaluation\.retrieval\.top_k is 0; set it to a number of at"),
        ("evaluation.retrieval.topk=1", r"topk: unknown key; evaluation\.retrieval has alpha, chunk_scores"),
        ("evaluation.sampling.temperature=1", r"cannot be set here; set evaluation\.temperature"),
        ("evaluation.sampling.recorded=x.jsonl", r"recorded cannot be set here; steep submit measures"),
        ("sampling.malformed_calls=answer", r"malformed_calls is set, and format is tags.* to end"),
        ("data.test=[{path: x, share: [0.7, 0.2]}]", r"share: \[0\.7, 0\.2\] has no question; raise the"),
        ("rewards.reranker={kind: biencoder, model: m}", r"model is set, and kind is biencoder, which"),
        ("retrieval.chunks=30", r"chunks is 30, and num_candidate_chunks is 20, so that variant ppr"),
        ("evaluation.retrieval={variant: semantic, top_k: 9}", r"top_k is 9, and chunks is 5, so that"),
        ("retrieval.rounds=prompt", "rounds is 3; answers without steps cannot be trained"),
        ("per_round.2.pairs.easy_outcome=1.5", r"per_round\.2\.pairs\.easy_outcome is 1\.5; set it to"),
        ("per_round.2.sampling.samples=1", r"per_round\.2\.sampling\.samples is 1; set it to a number of at"),
        ("per_round.2.pairs.step_margin=0.1", r"per_round\.2: pairs\.step_margin is 0\.1, and grammar"),
        ("per_round.2.retrieval.top_k=3", r"per_round\.2: retrieval\.top_k cannot be set for a single round; s"),
        ("per_round.2=3", r"per_round\.2 is 3; set it to a mapping"),
        ("per_round.two={}", r"the key per_round\.two is 'two'; set it to a whole number"),
        ("per_round.4={}", "settings for round 4, and rounds is 3; remove them, or set rounds"),
        ("=", r"--set '': expected key\.key=value"),
        ("corpus.files.0.path=x", r"corpus\.files is a list; set corpus\.files as a whole"),
        ("prompt.system=Answer #1", r"--set prompt\.system: # begins a comment in YAML; remove it, or"),
        ("rounds=" + "[" * 500, r"--set rounds: .*nesting is out of range"),
        ("rounds=\udcff", r"--set rounds: holds the character U\+DCFF"),
    ],
)  # fmt: skip
def test_an_override_is_refused_with_key_value_and_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(EMBEDDED, (override,))
    assert str(caught.value).isprintable()


ENDPOINTS = [
    "%s",
    "{%s: 1}",
    "{api_key: %s}",
    "{base_url: 'http://%s℀x/v1', model: m}",
    "{base_url: http://x/v1, model: m, timeout: %s}",
    "{base_url: http://x/v1, model: m, 'x: %s",
]
OPENAI = "judges.over={backend: openai, endpoint: {base_url: 'http://x/v1', model: m, %s}}"


@pytest.mark.parametrize(
    "override",
    [
        "judges=%s",
        "graph.source=%s",
        OPENAI % "extra: {api_key: %s}",
        OPENAI % "extra: {headers: {Authorization: Bearer %s}}",
        "name=%s",
        "%s",
        "rounds=[*%s",
        "retrieval.service=http://me:%s@x",
        *(f"graph.endpoint={endpoint}" for endpoint in ENDPOINTS),
    ],
)
@pytest.mark.parametrize("key", ["sk-secret-proj-Abc0123456789", "hf_" + "secretSecret" * 3])
def test_no_message_repeats_what_looks_like_a_key(override: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(HIPRAG, (override % key,))
    assert "ecret" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_no_message_about_a_file_repeats_a_key(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(child(tmp_path, f"graph:\n  endpoint: {endpoint % 'sk-secret'}\n"))
    assert "secret" not in str(caught.value)


def test_fields_of_requests_that_hold_no_key_are_accepted() -> None:
    extra = (
        "{stop_token_ids: [3], skip_special_tokens: false, chat_template_kwargs: {thinking: no}}"
    )
    config = load(HIPRAG, (OPENAI % f"extra: {extra}",))
    assert config.judges.over.endpoint.extra["stop_token_ids"] == [3]


def test_numbers_are_read_as_people_write_them() -> None:
    config = load(EMBEDDED, ("dpo.learning_rate=1e-5", "sft_data.sizes.3=7", "dpo.beta=1"))
    assert config.dpo.learning_rate == 1e-5
    assert config.sft_data.sizes == {3: 7, 4: 280}
    assert isinstance(config.dpo.beta, float)
    assert load(EMBEDDED, ('prompt.system="Answer #1"',)).prompt.system == "Answer #1"


def test_a_base_is_the_name_of_a_file(tmp_path: Path) -> None:
    chain = tmp_path / "chain0.yaml"
    for number in range(30):
        (tmp_path / f"chain{number}.yaml").write_text(f"base: chain{number + 1}.yaml\n")
    (tmp_path / "absent.yaml").write_text("base: nothing.yaml\n")
    (tmp_path / "list.yaml").write_text("base: [a]\n")
    (tmp_path / "directory.yaml").write_text("base: .\n")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for file, problem in {
        chain: "shorten the chain",
        tmp_path / "absent.yaml": "which .*absent.yaml names as its base",
        tmp_path / "list.yaml": "base is a list; set it to the name of a YAML file",
        tmp_path / "directory.yaml": "is a directory; name a YAML file in it",
        tmp_path / "loop.yaml": "loop.yaml: .*symbolic links",
        tmp_path / ("x" * 5000): "no such configuration file",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            load(file)


def test_a_folder_with_the_name_of_a_variant_is_not_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tearag-rft").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("tearag-rft").dpo.loss == "sft"
