"""Search with every kind of FAISS index, and the choice of the kind."""

import numpy as np
import pytest

from pipeline.core.errors import DependencyError, StoreError
from pipeline.knowledge.index.faiss_index import VectorIndex


def unit(rows, dimension=16, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_missing_neighbors_are_not_padded_with_minus_one():
    # One cell of an inverted file is probed, so FAISS fills up 400 places with -1.
    vectors = unit(400)
    import faiss

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


@pytest.fixture(scope="module", params=["hnsw", "ivf-pq"])
def approximate(request):
    """An approximate index over 2,000 vectors, and its kind."""
    vectors = unit(2000)
    return vectors, VectorIndex.build(vectors, request.param), request.param


def test_approximate_indexes_round_trip_and_find_the_vector_itself(tmp_path, approximate):
    vectors, built, _ = approximate
    built.save(tmp_path / "index.faiss")
    np.save(tmp_path / "index.npy", vectors)
    index = VectorIndex.load(tmp_path / "index.faiss", tmp_path / "index.npy")
    results = index.search(vectors[:50], 10)
    assert len(index) == 2000
    assert sum(row in rows.tolist() for row, (rows, _) in enumerate(results)) >= 45


def test_reported_recall_equals_the_recall_against_exact_search(approximate):
    vectors, index, kind = approximate
    exact = VectorIndex.build(vectors, "flat")
    both = zip(index.search(vectors, 21), exact.search(vectors, 21), strict=True)
    # The first neighbor of each is the vector itself.
    recalls = [(np.isin(a, b).sum() - 1) / 20 for (a, _), (b, _) in both]
    assert index.about["kind"] == kind
    assert 0.5 < index.about["recall_at_20"] == pytest.approx(np.mean(recalls), abs=0.02)


def test_gpu_without_faiss_gpu_names_the_remedy(tmp_path):
    import faiss

    if hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS has a GPU build")
    VectorIndex.build(unit(5), "flat").save(tmp_path / "index.faiss")
    with pytest.raises(DependencyError, match="install faiss-gpu in its place"):
        VectorIndex.load(tmp_path / "index.faiss", tmp_path / "none.npy", gpu=True)


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
