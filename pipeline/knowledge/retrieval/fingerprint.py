"""Identity of a retrieval: everything its answers depend on, with a fingerprint.

A retrieval service and its clients compare fingerprints, so that another corpus, graph, index or
setting is detected. Input: the retrieval settings, the fingerprints of the stages, and the hash of
the reranker model. Output: a `RetrievalIdentity`. Settings that change no answer are left out: the
fields marked with `Execution` (the address of the service, its patience, batch sizes and devices),
and ``retrieval.rounds``, which only the sampler reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.knowledge import Retrieval

VERSION = 3  # raise it when the same index and settings give other answers
_SAMPLER_FIELDS = frozenset({"rounds"})  # settings that only the sampler reads


@dataclass(frozen=True)
class RetrievalIdentity:
    """Everything that an answer depends on except the query."""

    corpus: str  # fingerprint of the stage
    graph: str
    index: str
    reranker: str | None  # content hash of the reranker model; None where the embedder reranks
    settings: Mapping[str, Any]
    version: int = VERSION

    @classmethod
    def from_settings(
        cls, settings: Retrieval, stages: Mapping[str, str], reranker: str | None
    ) -> RetrievalIdentity:
        """The identity of retrieval under ``settings``.

        ``stages`` maps "corpus", "graph" and "index" to fingerprints.
        """
        return cls(
            stages["corpus"],
            stages["graph"],
            stages["index"],
            reranker,
            {
                name: value
                for name, value in settings.deciding().items()
                if name not in _SAMPLER_FIELDS
            },
        )

    @property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the fields as canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
