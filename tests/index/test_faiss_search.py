"""Search with every kind of FAISS index, and the choice of the kind."""

from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from pipeline.core.errors import ConfigError, DependencyError, StoreError
from pipeline.index.faiss_index import VectorIndex, _on_gpus, resolve_kind


def unit(rows, dimension=16, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_missing_neighbors_are_not_padded_with_minus_one():
    # One cell of an inverted file is probed, so FAISS fills up 400 places with -1.
    vectors = unit(400)
    cells = faiss.index_factory(16, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    cells.train(vectors)
    cells.add(vectors)
    assert (cells.search(vectors[:5], 400)[1] == -1).any()
    index = VectorIndex(cells)
    for rows, scores in index.search(vectors[:5], 400):
        assert 0 < len(rows) < 400
        assert len(rows) == len(scores)
        assert (rows >= 0).all()


def test_flat_finds_the_highest_cosines_best_first():
    vectors, queries = unit(500), unit(7, seed=1)
    expected = np.argsort(-queries @ vectors.T, axis=1, kind="stable")[:, :10]
    results = VectorIndex.build(vectors, "flat").search(queries, 10)
    assert [rows.tolist() for rows, _ in results] == expected.tolist()
    assert results[0][1][0] == pytest.approx(float(queries[0] @ vectors[expected[0, 0]]), abs=1e-6)


def test_equal_vectors_come_in_row_order():
    vectors = np.repeat(unit(1), 6, axis=0)
    ((rows, scores),) = VectorIndex.build(vectors, "flat").search(vectors[:1], 4)
    assert rows.tolist() == [0, 1, 2, 3]
    assert scores.tolist() == [1.0] * 4


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_approximate_indexes_round_trip_and_find_the_vector_itself(tmp_path, kind):
    vectors = unit(2000)
    VectorIndex.build(vectors, kind).save(tmp_path / "index.faiss")
    np.save(tmp_path / "index.npy", vectors)
    index = VectorIndex.load(tmp_path / "index.faiss", tmp_path / "index.npy")
    results = index.search(vectors[:50], 10)
    assert len(index) == 2000
    assert sum(row in rows.tolist() for row, (rows, _) in enumerate(results)) >= 45


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_reported_recall_equals_the_recall_against_exact_search(kind):
    vectors = unit(3000)
    index = VectorIndex.build(vectors, kind)
    exact = VectorIndex.build(vectors, "flat")
    both = zip(index.search(vectors, 21), exact.search(vectors, 21), strict=True)
    # The first neighbor of each is the vector itself.
    recalls = [(np.isin(a, b).sum() - 1) / 20 for (a, _), (b, _) in both]
    assert index.about["kind"] == kind
    assert 0.5 < index.about["recall_at_20"] == pytest.approx(np.mean(recalls), abs=0.02)


def test_auto_is_exact_when_small_and_compressed_when_huge():
    assert [resolve_kind("auto", count) for count in (0, 100_000, 100_001, 21_000_000)] == [
        "flat", "flat", "hnsw", "ivf-pq",
    ]  # fmt: skip


def test_unsuitable_kinds_raise_config_error():
    with pytest.raises(ConfigError, match="needs at least 256 vectors to train on; there are 100"):
        VectorIndex.build(unit(100), "ivf-pq")


def test_hnsw_is_searched_on_the_cpu_although_a_gpu_is_wanted(tmp_path, capsys):
    vectors = unit(400)
    VectorIndex.build(vectors, "hnsw").save(tmp_path / "index.faiss")
    files = tmp_path / "index.faiss", tmp_path / "index.npy"
    (wanted,), (plain,) = (
        VectorIndex.load(*files, gpu=gpu).search(vectors[:1], 5) for gpu in (True, False)
    )
    np.testing.assert_array_equal(wanted[0], plain[0])
    assert "index.faiss: HNSW, which FAISS has for the CPU only" in capsys.readouterr().out


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this FAISS has a GPU build")
def test_gpu_without_faiss_gpu_names_the_remedy(tmp_path):
    VectorIndex.build(unit(5), "flat").save(tmp_path / "index.faiss")
    with pytest.raises(DependencyError, match=r"pip install 'steep\[gpu\]'"):
        VectorIndex.load(tmp_path / "index.faiss", tmp_path / "none.npy", gpu=True)


def gpu_build(count, copy):
    """A fake of FAISS with GPU support, which cannot be installed here."""
    return SimpleNamespace(
        StandardGpuResources=object,
        GpuMultipleClonerOptions=SimpleNamespace,
        IndexIVFPQ=faiss.IndexIVFPQ,
        get_num_gpus=lambda: count,
        index_cpu_to_all_gpus=copy,
    )


@pytest.mark.parametrize(("kind", "half"), [("Flat", False), ("IVF2,PQ96x8", True)])
def test_index_is_copied_to_all_gpus_with_codes_in_half_precision(kind, half):
    index = faiss.index_factory(768, kind, faiss.METRIC_INNER_PRODUCT)
    on_gpus = _on_gpus(gpu_build(1, lambda index, co: (index, co.useFloat16)), index)
    assert on_gpus == (index, half)


def test_missing_gpu_or_unsupported_index_raises_dependency_error():
    def refuse(index, co):
        raise RuntimeError("sub-quantizers (128) is not supported")

    with pytest.raises(DependencyError, match="FAISS sees no GPU; set it to false"):
        _on_gpus(gpu_build(0, refuse), faiss.IndexFlatIP(8))
    with pytest.raises(DependencyError, match=r"\(sub-quantizers \(128\) is not supported\); set"):
        _on_gpus(gpu_build(1, refuse), faiss.IndexFlatIP(8))


def test_missing_or_broken_index_raises_store_error(tmp_path):
    files = tmp_path / "index.faiss", tmp_path / "index.npy"
    with pytest.raises(StoreError, match="no such index; run the index stage"):
        VectorIndex.load(*files)
    files[0].write_bytes(b"not an index")
    with pytest.raises(StoreError, match="not a FAISS index"):
        VectorIndex.load(*files)
    VectorIndex.build(unit(400), "ivf-pq").save(files[0])
    with pytest.raises(StoreError, match=r"index\.npy: not an array of vectors"):
        VectorIndex.load(*files)
    np.save(files[1], unit(399))
    with pytest.raises(
        StoreError, match=r"\(399, 16\) vectors, but index\.faiss is over \(400, 16\)"
    ):
        VectorIndex.load(*files)


def test_neighbors_of_a_query_do_not_depend_on_the_other_queries():
    """For many queries FAISS uses another kernel, with two threads in this size of index."""
    import faiss

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20_000, 64), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = VectorIndex.build(vectors, "flat")
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        together = index.search(vectors[:64], 9)
        alone = [index.search(query[None], 9)[0] for query in vectors[:64]]
    finally:
        faiss.omp_set_num_threads(threads)
    for (rows, cosines), (alone_rows, alone_cosines) in zip(together, alone, strict=True):
        np.testing.assert_array_equal(rows, alone_rows)
        np.testing.assert_array_equal(cosines, alone_cosines)
