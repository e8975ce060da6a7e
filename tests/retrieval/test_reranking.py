"""Rerankers: raw scores, batches that do not fit, and the score cache."""

import math

import numpy as np
import pytest

from pipeline.config import Reranker
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import ConfigError, RetrievalError
from pipeline.knowledge.retrieval.flag_logits import flag_logits
from pipeline.knowledge.retrieval.rerank import (
    BiEncoder,
    CachedReranker,
    CrossEncoderModel,
    reranker_similarity,
)
from tests.retrieval.small_encoders import BagOfWords, write_cross_encoder

PAIRS = [
    ("who directed the film", "alba directed the film"),
    ("who directed the film", "the river crossed the city"),
    ("where was alba", "alba"),
]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    return write_cross_encoder(tmp_path_factory.mktemp("models") / "cross")


def logits(directory, pairs):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        return [
            model(**tokenizer(query, text, return_tensors="pt")).logits.item()
            for query, text in pairs
        ]


class LengthModel:
    """score = length of the text; records the pairs that it scores."""

    def __init__(self, identity="length"):
        self.identity = identity
        self.seen = []

    def compute(self, pairs):
        self.seen += pairs
        return [float(len(text)) for _, text in pairs]


def reranker(directory, kind="flag", **settings):
    return CrossEncoderModel(Reranker(kind=kind, model=str(directory), device="cpu", **settings))


KINDS = pytest.mark.parametrize("kind", ["flag", "cross-encoder"])


@KINDS
def test_a_pair_has_its_raw_logit_whatever_the_other_pairs_are(cross_encoder, kind):
    """On a CPU, to the last bit."""
    model = reranker(cross_encoder, kind, max_length=64)
    pairs = [*PAIRS, ("who", "the river crossed the city " * 6), ("mother of bruno", "alba")]
    alone = [model.compute([pair])[0] for pair in pairs]
    assert list(model.compute(pairs)) == alone
    assert list(model.compute(pairs[::-1])) == alone[::-1]
    np.testing.assert_allclose(alone[:3], logits(cross_encoder, PAIRS), atol=1e-4)


def many_pairs(count):
    rng = np.random.default_rng(0)
    words = ["alba", "bruno", "city", "crossed", "directed", "film", "mother", "river", "the"]
    return [
        (f"who {' '.join(rng.choice(words, 3))}", " ".join(rng.choice(words, rng.integers(1, 40))))
        for _ in range(count)
    ]


def test_logits_of_batches_are_those_of_flag_embedding_with_long_texts_cut(cross_encoder):
    from FlagEmbedding import FlagReranker

    theirs = FlagReranker(str(cross_encoder), devices=["cpu"])
    pairs = [
        *many_pairs(20),
        ("the river crossed the city " * 20, "alba " * 90),
    ]
    expected = theirs.compute_score(pairs, batch_size=4, max_length=48)
    found = flag_logits(theirs.tokenizer, theirs.model, pairs, batch_size=4, max_length=48)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_batch_that_does_not_fit_into_memory_is_halved_until_it_fits(cross_encoder):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(cross_encoder).eval()

    class Small:
        """A model on a device with memory for a number of rows."""

        device = model.device

        def __init__(self, room):
            self.room = room

        def __call__(self, **inputs):
            if len(inputs["input_ids"]) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return model(**inputs)

    tokenizer = AutoTokenizer.from_pretrained(cross_encoder)
    pairs = many_pairs(10)
    whole = flag_logits(tokenizer, Small(10), pairs, batch_size=10, max_length=64)
    halved = flag_logits(tokenizer, Small(3), pairs, batch_size=10, max_length=64)
    np.testing.assert_allclose(halved, whole, atol=1e-5)
    with pytest.raises(torch.OutOfMemoryError):
        flag_logits(tokenizer, Small(0), pairs, batch_size=10, max_length=64)


def test_kinds_of_reranker_never_share_cached_scores(cross_encoder):
    kinds = ("flag", 64), ("cross-encoder", 64), ("flag", 32)
    models = [reranker(cross_encoder, kind, max_length=length) for kind, length in kinds]
    assert len({model.identity for model in models}) == 3


def test_equal_pairs_reach_the_model_once_across_processes(tmp_path):
    pairs = [("a", "xx"), ("b", "xxx"), ("a", "xx")]
    first, second, other = LengthModel(), LengthModel(), LengthModel("another")
    path = tmp_path / "cache.sqlite"
    scores = CachedReranker(first, ContentCache(path)).score(pairs)
    assert scores.tolist() == [2.0, 3.0, 2.0]
    assert first.seen == pairs[:2]
    assert CachedReranker(second, ContentCache(path)).score(pairs).tolist() == [2.0, 3.0, 2.0]
    assert second.seen == []
    CachedReranker(other, ContentCache(path)).score(pairs)
    assert other.seen == pairs[:2]


def test_a_score_that_is_no_number_is_an_error_and_is_not_cached(tmp_path):
    cache, model = ContentCache(tmp_path / "cache.sqlite"), LengthModel()
    model.compute = lambda pairs: [float("nan"), 1.0]
    with pytest.raises(RetrievalError, match=r"reranker\.model gives nan as a score"):
        CachedReranker(model, cache).score(PAIRS[:2])
    scores = CachedReranker(LengthModel(), cache).score(PAIRS[:2])
    assert scores.tolist() == [float(len(text)) for _, text in PAIRS[:2]]


def test_bi_encoder_score_is_scale_times_cosine_plus_offset():
    reranker = BiEncoder(BagOfWords(), scale=10.0, offset=-4.0)
    scores = reranker.score([("a b", "a b"), ("a b", "b c"), ("a", "z")])
    np.testing.assert_allclose(scores, [6.0, 1.0, -4.0], atol=1e-4)


def test_similarity_is_the_sigmoid_of_the_raw_score():
    similarity = reranker_similarity(BiEncoder(BagOfWords(), scale=10.0, offset=-4.0))
    expected = [1 / (1 + math.exp(-6)), 1 / (1 + math.exp(4))]
    np.testing.assert_allclose(similarity([("a", "a"), ("a", "z")]), expected, atol=1e-6)
    assert similarity([]).tolist() == []


def test_bi_encoder_score_of_a_pair_does_not_depend_on_the_other_pairs():
    rng = np.random.default_rng(0)
    table = rng.standard_normal((2, 40, 384), dtype=np.float32)

    class Table:
        def encode(self, texts, role):
            rows = table[0] if role == "query" else table[1]
            return np.stack([rows[int(text)] for text in texts])

    reranker = BiEncoder(Table(), scale=1.0, offset=0.0)
    pairs = [(str(query), str(text)) for query in range(40) for text in range(0, 40, 7)]
    together = reranker.score(pairs)
    assert together.tolist() == [reranker.score([pair])[0] for pair in pairs]


@KINDS
def test_a_model_without_weights_for_one_score_is_refused(tmp_path, encoder, kind):
    """Their last layer would be random: other scores in each process."""
    several = write_cross_encoder(tmp_path / "several", labels=3)
    for directory, problem in (
        (encoder, "is a BertModel, which has no weights for scores; name a reranker"),
        (encoder.with_name("bi-bert"), "is a BertModel, which has no weights for scores"),
        (several, "has 3 outputs; expected 1; name a reranker"),
    ):
        with pytest.raises(ConfigError, match=f"reranker.model: {directory} {problem}"):
            reranker(directory, kind, max_length=64).compute(PAIRS)
