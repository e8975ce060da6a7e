"""Codes of one bit per dimension keep the nearest of very many candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.knowledge.index.signs import SignCodes


def clustered(count: int, dimension: int) -> np.ndarray:
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((300, dimension), dtype=np.float32)
    vectors_ND = centers[draw.integers(0, 300, count)]
    vectors_ND += 0.7 * draw.standard_normal((count, dimension), dtype=np.float32) + 0.2
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def test_the_nearest_of_many_candidates_are_kept(tmp_path: Path) -> None:
    vectors_ND = clustered(30_000, 100)  # not a multiple of 64 dimensions
    SignCodes.write(vectors_ND, tmp_path, "triplets")
    assert (tmp_path / "triplets.signs.npy").stat().st_size < 17 * 30_000
    codes = SignCodes.load(tmp_path, "triplets")
    assert codes is not None
    rows = np.arange(1, 30_000, dtype=np.int64)[::-1].copy()
    shares = []
    for query_D in vectors_ND[:50] + 0.01:
        kept = codes.nearest(query_D, rows)
        assert (len(kept), np.all(np.diff(kept) > 0), 0 in kept) == (4096, True, False)
        exact = rows[np.argsort(-(vectors_ND[rows] @ query_D))[:20]]
        shares.append(len(np.intersect1d(kept, exact)) / 20)
    assert np.mean(shares) > 0.98


def test_small_tables_have_no_codes(tmp_path: Path) -> None:
    SignCodes.write(clustered(100, 64), tmp_path, "triplets")
    assert not list(tmp_path.iterdir())
    assert SignCodes.load(tmp_path, "triplets") is None
