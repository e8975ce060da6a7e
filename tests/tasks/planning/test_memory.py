"""The memory plan: formulas against figures worked out by hand, and the sizes of the published data."""

import pytest

from pipeline.config import load
from pipeline.config.machine_choices import resolve_dtypes
from pipeline.core.gpus import GIB, Gpu, nominal_gpu
from pipeline.core.model_shapes import PUBLISHED
from pipeline.engine.plan.plan import Plan, make_plan
from pipeline.engine.plan.sizes import estimated_records, sizes_of
from pipeline.knowledge.index.memory import index_bytes, is_on_gpu
from pipeline.training.memory import training_memory
from tests.tasks.declared import stages

LLAMA = PUBLISHED["meta-llama/Meta-Llama-3-8B-Instruct"]
QWEN_14B = PUBLISHED["Qwen/Qwen2.5-14B-Instruct"]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def plan(
    name: str, gpu: Gpu | None, *names: str, overrides: tuple[str, ...] = (), gpus: int = 0
) -> Plan:
    """The plan of the named stages on ``gpus`` GPUs, by default as many as the configuration has."""
    config = resolve_dtypes(load(name, overrides), gpus=gpu is not None)
    dtypes = (f"{key}={dtype}" for key, dtype in config.dtypes.items())
    tasks = stages(name, names, (*overrides, *dtypes))
    settings = config.settings
    count = gpus or max(settings.gpus, 1)
    return make_plan(tasks, sizes_of(settings), [gpu] * count if gpu else [])


def parts(made: Plan) -> dict[str, float]:
    (stage,) = made.stages
    return {name: round(size / GIB, 1) for name, size in stage.memory.device.items()}


@pytest.mark.parametrize(("shape", "paper"), [(LLAMA, 42), (QWEN_14B, 61)])
def test_training_takes_about_what_the_paper_measured(shape, paper: float) -> None:
    # TeaRAG, table 9: GB on each A100, with two pairs a GPU.
    memory = training_memory(
        shape, rows=4, length=8192, rank=8, targets=ATTENTION, dropout=True, processes=8
    )
    assert memory.total / 1e9 == pytest.approx(paper, rel=0.15)


@pytest.mark.parametrize(("rows", "length", "measured"), [(16, 2500, 39.2), (4, 8192, 34.2)])
def test_the_plan_covers_what_training_reserved_on_a_gpu(rows, length, measured: float) -> None:
    # GiB on an H100, without the CUDA context: docs/log/2026-11.md, "First figures of a GPU".
    memory = training_memory(
        LLAMA, rows=rows, length=length, rank=8, targets=ATTENTION, dropout=True
    )
    assert measured < memory.total / GIB < 1.25 * measured


def test_shards_take_turns_on_a_machine_with_one_gpu() -> None:
    for count, used in ((1, 1), (2, 2), (8, 2)):
        made = plan("embedded-full", nominal_gpu(80), "sample", gpus=count)
        assert made.stages[0].gpus == used


def test_padded_rows_have_a_mask_of_every_token_by_every_token() -> None:
    settings = {"rank": 8, "targets": ATTENTION, "dropout": False}
    one, four = (training_memory(LLAMA, rows=n, length=8192, **settings) for n in (1, 4))
    assert one.mask == 0  # a single row is not padded
    assert four.mask == 4 * 8192**2 * (1 + 2)  # booleans, and the copy in bfloat16
    kept = training_memory(LLAMA, rows=4, length=8192, checkpointing=False, **settings)
    assert kept.mask == 4 * 8192**2 * (1 + 2 * 32)
    # Queries have 32 heads and keys 8: with a mask, keys and values are repeated for all of them.
    assert four.layer - 4 * one.layer == pytest.approx(4 * 8192 * 2 * 4096 * 2)
    dpo = parts(plan("tearag-llama3-8b", nominal_gpu(80), "train"))
    assert dpo["attention mask"] == 0.8


def test_indexes_of_the_published_corpus_have_the_bytes_of_the_page_and_scratch_memory() -> None:
    for variant, scratch in (("ppr", 3.0), ("semantic", 1.5)):
        more = (f"retrieval.variant={variant}",)
        made = plan("tearag-llama3-8b", nominal_gpu(80), "sample", overrides=more)
        assert parts(made)["FAISS scratch"] == scratch
    chunks, entities = index_bytes(21_015_324, 768), index_bytes(51_063_765, 768)
    assert chunks / 1e9 == pytest.approx(2.2, abs=0.05)
    assert entities / 1e9 == pytest.approx(5.4, abs=0.05)
    assert is_on_gpu(21_015_324)
    assert not is_on_gpu(1_000_000)  # HNSW
    assert index_bytes(100, 768) == 4 * 768 * 100


def test_sampling_with_a_share_of_85_percent_does_not_fit_80_gb() -> None:
    share = ("engine.gpu_memory_utilization=0.85",)
    made = plan("tearag-llama3-8b", nominal_gpu(80), "sample", overrides=share)
    found = parts(made)
    left = sum(found.values()) - found["vLLM (0.85 of the GPU)"]
    assert left - found["embedder batch"] - found["reranker batch"] == pytest.approx(12.4, abs=0.15)
    (fault,) = made.faults()
    assert fault.startswith("sample needs 83.5 GiB on a GPU of 78.8 GiB")
    assert "engine.gpu_memory_utilization" in fault


def test_a_judge_with_too_small_a_share_is_refused_beside_a_larger_policy() -> None:
    engine = "engine: {kind: vllm, gpu_memory_utilization: 0.5}"
    own = f"judges.over={{backend: vllm, model: Qwen/Qwen2.5-32B-Instruct, {engine}}}"
    (fault,) = plan("hiprag-qwen2.5-3b", nominal_gpu(80), "judge", overrides=(own,)).faults()
    assert fault.startswith("judges.over.engine.gpu_memory_utilization is 0.5")


def test_the_evaluation_is_planned_with_its_own_retrieval() -> None:
    own = ("retrieval.variant=none", "evaluation.retrieval.variant=semantic")
    gpu = nominal_gpu(80)
    made = plan("hiprag-qwen2.5-3b", gpu, "sample", "evaluate-policy", "index", overrides=own)
    found = {stage.stage: stage for stage in made.stages}
    device = {name: set(stage.memory.device) for name, stage in found.items()}
    assert not {"FAISS indexes", "embedder"} & device["sample"]
    assert {"FAISS indexes", "embedder"} <= device["evaluate-policy"]
    everywhere = plan("hiprag-qwen2.5-3b", gpu, "index")
    assert found["index"].work.disk == everywhere.stages[0].work.disk


def test_published_sizes_are_those_of_the_paper() -> None:
    sizes = sizes_of(load("tearag-llama3-8b"))
    assert sizes.questions["sampling"] == 10_000
    assert sizes.questions["test"] == 40_400
    assert (sizes.chunks, round(sizes.entities), round(sizes.triplets)) == (
        21_015_324, 51_063_765, 130_931_564,
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "count"), [("null", 600), ("700", 600), ("400", 400)])
def test_the_limit_of_a_file_counts_what_its_share_leaves(limit: str, count: int) -> None:
    file = f"{{dataset: musique, path: musique_train.jsonl, share: [0, 0.25], limit: {limit}}}"
    assert sizes_of(load("embedded", (f"data.sft=[{file}]",))).questions["sft"] == count


def test_a_round_is_planned_with_its_own_questions() -> None:
    own = "per_round={2: {data: {sampling: [{dataset: nq, path: nq_dev.jsonl}]}}}"
    before, after = (
        plan("embedded", None, "sample", "train", overrides=more).stages for more in ((), (own,))
    )
    sample, train = (
        new.work.seconds / old.work.seconds for old, new in zip(before, after, strict=True)
    )
    assert sample == pytest.approx((63 + 100 + 63) / (3 * 63))
    first, later = 0.876 * (6 * 2 + 2), 0.285 * (6 + 2)  # two epochs and one; the reference's pass
    assert train == pytest.approx((63 * (first + later) + 100 * later) / (63 * (first + 2 * later)))


def test_records_of_a_file_are_estimated_from_the_first(tmp_path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f'{{"question": "What is {n:04d}?"}}\n' for n in range(1000)))
    assert estimated_records(path) == pytest.approx(1000, rel=0.1)
