"""vLLM and transformers satisfy the engine interface, on a random model of two layers.

All tests share one engine per kind, because starting vLLM takes seconds. In the quick tests vLLM
runs in the embedded run (`tests/torture`).
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import EngineConfig
from pipeline.core.errors import DependencyError, EngineError
from pipeline.llm.engine import EngineEnded, GenerationRequest
from pipeline.llm.open_engine import open_engine
from pipeline.llm.transformers_engine import TransformersEngine

PROMPT = [1, 4, 40, 41, 42, 43]


def settings(kind: str, **changes) -> EngineConfig:
    return EngineConfig(
        kind=kind,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=16,
        cpu_kv_cache_gib=1,
        enforce_eager=True,
        **changes,
    )


@pytest.fixture(
    scope="module", params=["transformers", pytest.param("vllm", marks=pytest.mark.slow)]
)
def engine(request: pytest.FixtureRequest, model: Path):
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    opened = open_engine(settings(request.param), model, adapter=None, seed=0)
    yield opened
    opened.close()


def requests(count: int, *, temperature: float = 1.0, max_tokens: int = 24, stop=(), top_p=1.0):
    return [
        GenerationRequest(
            id=f"{number}",
            prompt_ids=[*PROMPT, 50 + number],
            max_tokens=max_tokens,
            stop=stop,
            temperature=temperature,
            top_p=top_p,
            seed=1000 + number,
        )
        for number in range(count)
    ]


def decoded(engine, result) -> str:
    """The text of the ids with control tokens, without the id that ended the sequence."""
    ids = result.token_ids[:-1] if result.finish == "eos" else result.token_ids
    return engine.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_seeded_segment_does_not_depend_on_concurrent_requests(engine):
    together = engine.generate(requests(20))  # more than fit at once
    alone = engine.generate(requests(20)[7:8])
    assert together[7].token_ids == alone[0].token_ids
    assert len({tuple(result.token_ids) for result in together}) == 20


def test_the_text_decodes_the_ids_and_every_id_has_a_log_probability(engine):
    for result in engine.generate(requests(8)):
        assert result.text == decoded(engine, result)
        assert len(result.logprobs) == len(result.token_ids) <= 24
        assert all(math.isfinite(value) and value <= 0 for value in result.logprobs)


CHANGES = [
    {"stop": ("",)}, {"stop": ("a", "")}, {"temperature": 2.5}, {"temperature": 1e30},
    {"temperature": 1e-9}, {"temperature": 5e-324}, {"temperature": math.inf}, {"temperature": math.nan},
    {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 5e-324}, {"top_p": 2.0}, {"top_p": math.nan},
    {"seed": 2**63 - 1}, {"seed": 2**64}, {"max_tokens": 0}, {"max_tokens": 10**9}, {"max_tokens": -1},
    {"prompt_ids": []}, {"prompt_ids": PROMPT * 100}, {"stop": ("x",) * 1000}, {"stop": ("x" * 10_000,)},
]  # fmt: skip


@pytest.fixture(scope="module")
def alone(engine) -> list[int]:
    """The ids of the first request without another."""
    [result] = engine.generate(requests(1))
    return result.token_ids


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change}"[:30])
def test_what_an_engine_refuses_or_answers_changes_no_other_request(engine, alone, change):
    """An exception in `add` concerns one request, and nothing of it stays in the engine."""
    [good] = requests(1)
    odd = replace(good, id="odd", **change)
    engine.add(good)
    try:
        engine.add(odd)
    except EngineEnded:
        raise
    except Exception:  # noqa: BLE001 - of any type
        expected = {"0"}
    else:
        expected = {"0", "odd"}
    assert engine.unfinished() == len(expected)
    results = {}
    while engine.unfinished():
        results.update((result.id, result) for result in engine.step())
    assert results.keys() == expected
    assert results["0"].token_ids == alone
    for result in results.values():
        assert all(math.isfinite(value) for value in result.logprobs)


def test_a_control_token_interrupts_a_stop_string(engine):
    """The texts on both sides of a control token, joined, would match a stop string without the token."""
    special = set(engine.tokenizer.all_special_ids)
    for free in engine.generate(requests(40)):
        inside = [at for at, token in enumerate(free.token_ids[1:-1], start=1) if token in special]
        neighbors = [(free.token_ids[at - 1], free.token_ids[at + 1]) for at in inside]
        parts = [engine.tokenizer.decode(list(pair)) for pair in neighbors]
        if parts and "\ufffd" not in parts[0] and parts[0] not in free.text:
            break
    else:
        pytest.fail("no control token with text on both sides among 960 random tokens")
    again = requests(40, stop=(parts[0],))[int(free.id)]
    [result] = engine.generate([again])
    assert (result.token_ids, result.finish) == (free.token_ids, free.finish)


def test_a_stop_string_ends_the_segment_and_is_part_of_it(engine):
    [free] = engine.generate(requests(1, temperature=0.0))
    stop = free.text[3:5]
    [stopped] = engine.generate(requests(1, temperature=0.0, stop=(stop,)))
    assert stopped.finish == "stop"
    assert stop in stopped.text
    assert stopped.text == decoded(engine, stopped)
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]


def test_a_constraint_is_followed_or_refused(engine):
    words = {"type": "regex", "pattern": "[ab]{3}"}
    constraint = json.dumps({"type": "structural_tag", "format": words})
    asked = replace(requests(1)[0], constraint=constraint)
    if isinstance(engine, TransformersEngine):
        with pytest.raises(EngineError, match=r"set engine.kind: vllm, or leave th"):
            engine.add(asked)
        return
    [result] = engine.generate([asked])
    assert re.fullmatch("[ab]{3}", result.text)
    assert len(result.logprobs) == len(result.token_ids)
    none = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}
    broken = json.dumps({"type": "structural_tag", "format": none})
    with pytest.raises(EngineError, match="minimum greater than maximum"):
        engine.add(replace(requests(1)[0], constraint=broken))


def test_the_end_of_sequence_id_is_returned(engine):
    ended = [r for r in engine.generate(requests(40, max_tokens=60)) if r.finish == "eos"]
    assert ended, "none of 2,400 random tokens ended a segment"
    assert all(result.token_ids[-1] == engine.tokenizer.eos_token_id for result in ended)


def test_log_probabilities_belong_to_the_sampled_distribution(engine, model: Path):
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for request, temperature in zip(requests(2, temperature=0.7), (0.7, 0.7), strict=True):
        [result] = engine.generate([request])
        ids = torch.tensor([request.prompt_ids + result.token_ids])
        with torch.no_grad():
            logits_TV = reference(ids).logits[0, len(request.prompt_ids) - 1 : -1]
        expected_T = (logits_TV / temperature).log_softmax(-1)
        expected_T = expected_T.gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
        assert result.logprobs == pytest.approx(expected_T.tolist(), abs=2e-3)


def test_merged_and_loaded_adapters_generate_equal_text(model: Path, adapter: Path):
    generated = {}
    for name, adapters, policy in (
        ("base", "merged", None),
        ("merged", "merged", adapter),
        ("loaded", "loaded", adapter),
    ):
        config = settings("transformers", adapters=adapters)
        engine = open_engine(config, model, adapter=policy, seed=0)
        generated[name] = [r.token_ids for r in engine.generate(requests(4, temperature=0.0))]
        engine.close()
    assert generated["merged"] == generated["loaded"] != generated["base"]


@pytest.mark.parametrize("name", ["./absent", "/absent/model"])
def test_a_missing_path_is_not_resolved_as_a_hub_name(name: str):
    with pytest.raises(
        DependencyError, match=rf"graph\.model: {name}: no such directory; name a m"
    ):
        open_engine(settings("transformers"), name, adapter=None, seed=0, key="graph.model")
