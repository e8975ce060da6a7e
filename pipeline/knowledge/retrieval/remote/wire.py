"""Wire format of the retrieval service: queries and answers as JSON.

Encodes and decodes lists of `Query`, and lists of `ContextItem` lists. Both decoders check every
field and raise InputError with one sentence. Scores are transferred without loss. What exceeds the
limits of a query is cut off. No segment of 512 tokens, the longest in the shipped configurations,
exceeds them, so a service answers every query as retrieval in process does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.records import ContextItem
from pipeline.knowledge.retrieval.base import Query

HEADER = "x-steep-retrieval"  # response header with the fingerprint of the retrieval
TOKEN = "STEEP_TOKEN"  # environment variable with the token of a service that asks for one
MAX_BODY = 16 * 2**20  # bytes of a request
MAX_QUERIES = 4096  # of a request; trainers send one for all their roll-outs
PART = 256  # queries that are retrieved at once
MAX_ENTITIES = 256  # of a query: each is a token and a separator at least
MAX_TEXT = 20_000  # characters


def usable_token(token: str, remedy: str) -> str:
    """The token of the variable `TOKEN`. Raises ConfigError for one that no header can hold."""
    if not re.fullmatch("[!-~]+", token):
        problem = f"the environment variable {TOKEN} is empty, or not ASCII text without spaces"
        raise ConfigError(f"{problem}; {remedy}")
    return token


class _WireQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    subquery: str
    entities: tuple[str, ...] = ()
    later: bool = False


_QUERIES = TypeAdapter(Annotated[list[_WireQuery], Field(max_length=MAX_QUERIES)])
_ANSWERS = TypeAdapter(list[list[ContextItem]], config=ConfigDict(allow_inf_nan=False))


class SearchR1Request(BaseModel):
    """A request to the retriever of Search-R1, which SkyRL, verl and slime use as well.

    ``{"queries": ["…"], "topk": 3, "return_scores": true}``; ``query`` may be one text in place of
    the list. ``topk`` cannot exceed the number of items that the configuration retrieves. A query
    that is no text finds nothing, as an empty one: one bad sample must not end a trainer's batch.
    """

    queries: Annotated[list[Any], Field(max_length=MAX_QUERIES)] = []
    query: str | None = None
    topk: Annotated[int, Field(ge=1)] | None = None
    return_scores: bool = False

    def as_queries(self) -> list[Query]:
        """The texts as queries whose only entity is the text."""
        given = self.queries if self.query is None else [self.query, *self.queries]
        texts = (text[:MAX_TEXT] if isinstance(text, str) else "" for text in given)
        return [Query(text, (text,)) for text in texts]

    def encode(self, answers: Sequence[Sequence[ContextItem]]) -> bytes:
        """``result``: for each query a list of documents, with their scores if asked for."""
        result = []
        for items in answers:
            documents = [
                {"id": item.id, "title": item.title, "contents": f'"{item.title}"\n{item.text}'}
                for item in items[: self.topk]
            ]
            scored = [
                {"document": document, "score": item.score}
                for document, item in zip(documents, items, strict=False)
            ]
            result.append(scored if self.return_scores else documents)
        return json.dumps({"result": result}).encode()


_SEARCH_R1 = TypeAdapter(SearchR1Request)


def decode_search_r1(body: bytes) -> SearchR1Request | None:
    """The request of a client of Search-R1; None for a list, which is a request of our own.

    Raises InputError with the position of the first fault.
    """
    if not body.lstrip().startswith(b"{"):
        return None
    asked: SearchR1Request = _decode(_SEARCH_R1, body, "request")
    if not asked.as_queries():
        raise InputError("request: no queries; name texts in queries, or one in query")
    return asked


def encode_queries(queries: Sequence[Query]) -> bytes:
    """A JSON list of {subquery, entities, later}."""
    return json.dumps([asdict(_cut(query)) for query in queries]).encode()


def decode_queries(body: bytes) -> list[Query]:
    """The queries of a request. Raises InputError with the position of the first fault.

    A position reads ``queries[3].subquery``.
    """
    return [_cut(query) for query in _decode(_QUERIES, body, "queries")]


def _cut(query: Query | _WireQuery) -> Query:
    entities = tuple(entity[:MAX_TEXT] for entity in query.entities[:MAX_ENTITIES])
    return Query(query.subquery[:MAX_TEXT], entities, query.later)


def encode_answers(answers: Sequence[Sequence[ContextItem]]) -> bytes:
    """A JSON list with a list of {kind, id, title, text, score} per query."""
    return _ANSWERS.dump_json([list(items) for items in answers])


def decode_answers(body: bytes) -> list[list[ContextItem]]:
    """The items of each query. Raises InputError with the position of the first fault."""
    answers: list[list[ContextItem]] = _decode(_ANSWERS, body, "answers")
    return answers


def _decode(kind: TypeAdapter[Any], body: bytes, name: str) -> Any:
    try:
        return kind.validate_json(body, strict=True)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        raise InputError(f"{name}{at}: {fault['msg']}") from None
