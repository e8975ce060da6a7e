"""Embeddings: order, prefixes, the cache, and errors of models that are missing or broken."""

import shutil

import numpy as np
import pytest

from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import ConfigError, DependencyError
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.index.packed import PACK, SIZES, PackedTexts
from tests.retrieval.small_encoders import write_bi_encoder

TEXTS = ["alba directed the film", "where was the river", "mother of bruno"]


def embedder(encoder, **settings):
    return Embedder(str(encoder), device="cpu", max_length=64, **settings)


def test_prefix_is_put_before_the_text_by_role(encoder):
    plain = embedder(encoder).encode(["query: who", "passage: who"], "query")
    prefixed = embedder(encoder, query_prefix="query: ", passage_prefix="passage: ")
    np.testing.assert_allclose(prefixed.encode(["who"], "query")[0], plain[0], atol=1e-5)
    np.testing.assert_allclose(prefixed.encode(["who"], "passage")[0], plain[1], atol=1e-5)


def test_new_vectors_are_stored_on_disk_unless_store_is_false(encoder, tmp_path):
    cache = ContentCache(tmp_path / "cache.sqlite")
    item = embedder(encoder, cache=cache)
    vectors = item.encode(TEXTS[:2], "passage")
    item.encode(TEXTS[2:], "passage", store=False)
    keys = [item.cache_key(text) for text in TEXTS]
    stored = ContentCache(tmp_path / "cache.sqlite").get(keys)
    assert set(stored) == set(keys[:2])
    assert stored[keys[0]] == vectors[0].tobytes()


def test_a_vector_without_numbers_is_an_error_that_names_its_text(encoder, tmp_path):
    """An index never returns such a vector, and a cache keeps it."""
    item = embedder(encoder, cache=ContentCache(tmp_path / "cache.sqlite"))
    weights = item._model[0].auto_model.embeddings.word_embeddings.weight.data
    weights[item._model.tokenizer.convert_tokens_to_ids("river")] = float("nan")
    for text in TEXTS[1:2] * 2:
        with pytest.raises(ConfigError, match=f"gives no numbers for '{text}'; its files"):
            item.encode([text, TEXTS[0]], "passage")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("package:no_such_package_here", "pip install no-such-package-here"),
        ("package:json", "package json is not installed, or holds no model"),
        ("./models/nothing", "no such directory; name a model directory"),
        ("owner/no-such-model", "run hf download owner/no-such-model"),
    ],
)
def test_missing_model_raises_dependency_error_with_the_remedy(name, message):
    with pytest.raises(DependencyError, match=message):
        Embedder(name)


def test_broken_weights_raise_dependency_error(encoder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(encoder, path)
    for file in path.rglob("*.safetensors"):
        file.write_bytes(b"nonsense")
    with pytest.raises(DependencyError, match="does not load as a sentence-transformers model"):
        embedder(path).encode(["alba"], "query")


WORDS = ["alba", "directed", "the", "film", "where", "was", "river", "mother", "of", "bruno"]
# From 3 tokens, at which kernels for a few rows would be used, to the maximum of 64.
LENGTHS = [1, 1, 1, 2, 3, 5, 5, 8, 8, 13, 21, 21, 34, 55, 90, 90]
MIXED = [
    " ".join(WORDS[(7 * row + place) % len(WORDS)] for place in range(words))
    for row, words in enumerate(LENGTHS)
]


def in_batches(item, order, size):
    vectors = np.zeros((len(order), 32), dtype=np.float32)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        vectors[rows] = item.encode([MIXED[row] for row in rows], "passage")
    return vectors


@pytest.fixture(scope="module", params=["bert", "electra"])
def either_model(request, encoder, tmp_path_factory):
    """Models whose texts share forward passes with texts of any length, and of their length only."""
    if request.param == "bert":
        return encoder
    return write_bi_encoder(tmp_path_factory.mktemp("kinds") / request.param, kind=request.param)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vector_depends_on_its_text_alone(either_model, dtype):
    order = list(range(len(MIXED)))
    single, batched = (embedder(either_model, dtype=dtype, batch_size=n) for n in (1, 64))
    alone = in_batches(batched, order, 1)
    for item in (single, batched):
        np.testing.assert_array_equal(in_batches(item, order, len(order)), alone)
        np.testing.assert_array_equal(in_batches(item, order[::-1], 7), alone)


def row_by_row(linear, layer, rows):
    import torch

    each = [linear(layer, row[None]) for row in rows.reshape(-1, rows.shape[-1])]
    return torch.cat(each).reshape(*rows.shape[:-1], -1)


def by_number_of_rows(linear, layer, rows):
    return linear(layer, rows) + rows.shape[-2]


def other_bits_for_few_rows(linear, layer, rows):
    return linear(layer, rows) + (rows.shape[-2] < 32)


def seldom_other_bits_for_few_rows(linear, layer, rows):
    return linear(layer, rows) + (rows.shape[-2] < 32) * (rows.flatten()[0] < -1.2)


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (row_by_row, SIZES),
        (other_bits_for_few_rows, tuple(size for size in SIZES if size >= 32)),
        (seldom_other_bits_for_few_rows, tuple(size for size in SIZES if size >= 32)),
        (by_number_of_rows, (PACK,)),
    ],
)
def test_packs_have_the_sizes_for_which_kernels_give_the_same_bits(
    encoder, monkeypatch, kernel, sizes
):
    import torch

    linear = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda *given: kernel(linear, *given))
    order = list(range(8))
    alone, together = (in_batches(embedder(encoder), order, size) for size in (1, 8))
    np.testing.assert_array_equal(alone, together)
    assert PackedTexts(embedder(encoder)._model).sizes == sizes


def test_vectors_are_those_of_sentence_transformers(either_model):
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(either_model), device="cpu")
    plain.max_seq_length = 300
    texts = [*MIXED, " ".join(WORDS * 13), " ".join(WORDS * 40)]  # of 132 and of 300 tokens
    expected = plain.encode(texts, normalize_embeddings=True)
    own = Embedder(str(either_model), device="cpu", max_length=300).encode(texts, "passage")
    np.testing.assert_allclose(own, expected, atol=1e-5)
    as_on_a_gpu = Embedder(str(either_model), device="cpu", max_length=300, batch_size=2)
    as_on_a_gpu.__dict__["_computation"] = ()  # batches that a thread tokenizes ahead
    np.testing.assert_allclose(as_on_a_gpu.encode(texts, "passage"), expected, atol=1e-5)
