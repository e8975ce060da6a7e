"""With vLLM on a CPU, a segment depends on its prompt and seed alone, in every bit.

The tiny reader of the embedded runs generates in bfloat16. As in a rollout, observations arrive at
random times, so that the engine's batches and cached prefixes differ from run to run.
"""

import random
from collections.abc import Sequence

import pytest

from pipeline.config import EngineConfig
from pipeline.core.model_files import find_model
from pipeline.llm.engine import GenerationRequest
from pipeline.llm.open_engine import open_engine

pytestmark = pytest.mark.slow
WORDS = ["mother", "film", "director", "born", "city", "river", "Ada", "Bruno", "wrote", "novel"]
SEGMENTS = 3
Rollout = dict[int, list[tuple[list[int], list[float]]]]  # ids and log-probabilities


@pytest.fixture(scope="module")
def engine():
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("vLLM is built for GPUs")
    config = EngineConfig(
        dtype="bfloat16",
        max_model_len=3072,
        max_num_seqs=64,
        cpu_kv_cache_gib=1,
        enforce_eager=True,
    )
    opened = open_engine(config, find_model("data/tiny_reader"), adapter=None, seed=0)
    yield opened
    opened.close()


def text_ids(engine, key: str, most: int) -> list[int]:
    """Ids of 5 to ``most`` words that depend on ``key`` alone."""
    chosen = random.Random(key)
    words = " ".join(chosen.choice(WORDS) for _ in range(chosen.randint(5, most)))
    return list(engine.tokenizer(words, add_special_tokens=False)["input_ids"])


def roll_out(engine, order: Sequence[int], temperature: float, *, delays: int) -> Rollout:
    """Segments of every trajectory of ``order``, with observations that arrive at random steps."""
    arrival = random.Random(delays)
    results: Rollout = {number: [] for number in order}
    ids = {number: text_ids(engine, f"prompt {number}", 60) for number in order}
    waiting = list(order)
    generating: dict[str, int] = {}
    while waiting or generating:
        ready = [number for number in waiting if arrival.random() < 0.3]
        waiting = [number for number in waiting if number not in ready]
        for number in ready:
            request = GenerationRequest(
                id=f"{delays} {number} {len(results[number])} {temperature}",
                prompt_ids=ids[number],
                max_tokens=20,
                stop=(),
                temperature=temperature,
                top_p=1.0,
                seed=100 * number + len(results[number]),
            )
            engine.add(request)
            generating[request.id] = number
        for result in engine.step() if generating else ():
            number = generating.pop(result.id)
            results[number].append((result.token_ids, result.logprobs))
            if len(results[number]) < SEGMENTS:
                observed = text_ids(engine, f"{number} {len(results[number])}", 200)
                ids[number] = [*ids[number], *result.token_ids, *observed]
                waiting.append(number)
    return results


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_segment_does_not_depend_on_the_batch_or_on_cached_prefixes(engine, temperature):
    numbers = list(range(10))
    first = roll_out(engine, numbers, temperature, delays=1)
    assert sum(len(ids) for segments in first.values() for ids, _ in segments) > 200
    assert roll_out(engine, numbers[::-1], temperature, delays=2) == first
    # As in a process that continues after a kill: nothing is cached, and few trajectories remain.
    assert engine._engine.reset_prefix_cache()
    assert roll_out(engine, [7], temperature, delays=3) == {7: first[7]}
