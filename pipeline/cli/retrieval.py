"""Commands of retrieval: ``kag``, ``hyper``, ``search``, ``recall``, ``serve`` and ``record``.

``kag`` runs PageRank over a knowledge association graph (TeaRAG, arXiv 2511.05385, 4.1), ``hyper``
ranks hyperedges by informativeness (ProGraph-R1, eq. 6 to 10). Both read JSONL or Parquet and add
``ranking`` to each record.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from pipeline.cli.options import (
    NAMES_OF_POLICIES,
    Chosen,
    JsonOption,
    Output,
    PolicyOption,
    Source,
    with_configuration,
)
from pipeline.cli.printing import print_json, print_tables, silence_model_loading
from pipeline.cli.records import Record, extended
from pipeline.core.errors import InputError, missing
from pipeline.core.record_io import write_jsonl
from pipeline.core.text import one_line, visible
from pipeline.knowledge.retrieval.base import ScoredChunk, ScoredTriplet

_LARGEST = 1e100  # number of an embedding, of which a cosine can be computed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkView(ScoredChunk):
    """A retrieved chunk with the reranker's raw score."""

    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripletView(ScoredTriplet):
    """A retrieved triplet with the reranker's raw score."""

    relation: str = ""
    chunk_id: str | None = None


@dataclasses.dataclass
class RetrievedView:
    """The fields that ``kag`` reads; the settings default to the paper's."""

    subquery: str
    entities: list[str]
    chunks: list[ChunkView]
    triplets: list[TripletView]
    tau: float = 0.2
    alpha: float = 0.5
    k_f: int = 5


@dataclasses.dataclass
class HyperedgeView:
    """A hyperedge and the names of its entities."""

    id: str
    entities: list[str]


@dataclasses.dataclass
class HyperView:
    """The fields that ``hyper`` reads; ``entities`` are embeddings by name."""

    query_entities: list[str]
    entities: dict[str, list[float]]
    hyperedges: list[HyperedgeView]
    k: int = 5


def kag(source: Source, output: Output = "-") -> None:
    """Add the PageRank of all chunks and triplets of a step, and the selected ids."""
    write_jsonl(output, extended(source, RetrievedView, _rank_nodes))


def _rank_nodes(view: RetrievedView) -> Record:
    """All nodes, best first, and the selected ids; raises InputError for impossible settings."""
    from pipeline.knowledge.retrieval.kag import rank

    if not 0 < view.alpha < 1:
        raise InputError(f"alpha is {view.alpha}; expected 0 < alpha < 1")
    if view.k_f < 1:
        raise InputError(f"k_f is {view.k_f}; expected at least 1")
    ranking, selected = rank(
        view.subquery,
        view.entities,
        view.chunks,
        view.triplets,
        tau=view.tau,
        alpha=view.alpha,
        top_k=view.k_f,
    )
    nodes = [{"kind": node.kind, "id": node.id, "mass": node.mass} for node in ranking]
    return {"ranking": nodes, "selected": list(selected)}


def hyper(source: Source, output: Output = "-") -> None:
    """Add ranking, the k best hyperedges that share an entity with the query."""
    write_jsonl(output, extended(source, HyperView, _rank_edges))


def _rank_edges(view: HyperView) -> Record:
    """Ids and scores (ProGraph-R1 eq. 6 to 10), best first; checks the fields (InputError)."""
    import numpy as np

    from pipeline.knowledge.retrieval.informativeness import (
        Incidence,
        best_edges,
        cosine_to_mean,
        informativeness,
    )

    if view.k < 1:
        raise InputError(f"k: {view.k}; expected at least 1")
    row_of = {name: row for row, name in enumerate(view.entities)}
    query_entities = dict.fromkeys(view.query_entities)
    edges = {edge.id: edge.entities for edge in view.hyperedges}
    if len(edges) < len(view.hyperedges):
        raise InputError("hyperedges: two have the same id")
    for field, names in (
        ("query_entities", query_entities),
        *(("hyperedges", entities) for entities in edges.values()),
    ):
        absent = next((name for name in names if name not in row_of), None)
        if absent is not None:
            raise InputError(f"{field}: {absent!r} has no embedding in entities")
    sizes = {len(vector) for vector in view.entities.values()}
    if len(sizes) > 1:
        raise InputError(f"entities: embeddings of {min(sizes)} and of {max(sizes)} numbers")
    if not view.entities or not query_entities:
        return {"ranking": []}
    vectors = np.array(list(view.entities.values()), dtype=np.float64)
    if not vectors.size or not (np.abs(vectors) < _LARGEST).all():
        raise InputError(f"entities: an embedding is a list of numbers below {_LARGEST:g}")
    incidence = Incidence.of([[row_of[n] for n in e] for e in edges.values()], len(row_of))
    rows = [row_of[name] for name in query_entities]
    touched, scores = informativeness(incidence, rows, cosine_to_mean(vectors, rows))
    ids = list(edges)
    best = best_edges(touched, scores, lambda edge: ids[edge], view.k)
    return {"ranking": [{"id": ids[edge], "score": score} for edge, score in best]}


@with_configuration
def recall(
    chosen: Chosen,
    corpus: Annotated[list[Path] | None, typer.Option(help="documents; repeatable")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="questions, with gold passages or answers")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="musique, hotpotqa, 2wiki, ...; inferred from the fields")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="first questions only")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure recall, tokens and seconds for every kind of retrieval.

    The default configuration is real-passages.
    """
    from pipeline.core.shipped import find_configuration
    from pipeline.look.recall import run

    files = run.InputFiles(corpus or (), questions, dataset)
    silence_model_loading()
    measured = run.run_recall(
        find_configuration(chosen.config if chosen.given else "real-passages"),
        files,
        overrides=chosen.overrides,
        data=chosen.root,
        limit=limit,
    )
    if as_json:
        print_json([measured.as_json()])
    else:
        print_tables([run.table(measured)])


@with_configuration
def search(
    chosen: Chosen,
    query: Annotated[str, typer.Argument(help="what to search for")],
    variant: Annotated[
        str | None,
        typer.Option(help="kind of retrieval, such as semantic, linked or ppr", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what retrieval finds for a query, with scores and sources.

    The query is also the key entity. Nothing of the run is made or changed.
    """
    from pipeline.serving.asking import search as find

    if not query.strip():
        raise InputError("the query is empty; write what to search for")
    overrides = () if variant is None else (f"retrieval.variant={variant}",)
    silence_model_loading()
    found = find(chosen.task("index", overrides=overrides), query.strip())
    if as_json:
        print_json(found)
        return
    for number, item in enumerate(found["results"], start=1):
        title = f"{item['title']}: " if item["title"] else ""
        where = item["source"] or item["passage"]
        typer.echo(visible(f"{number:>2}  {item['score']:<8.3g} {item['kind']:<9} {where}"))
        typer.echo(f"    {one_line(title + item['text'], 300)}")
    if not found["results"]:
        typer.echo("nothing was found")


Host = Annotated[
    str, typer.Option(help="address to listen on; on any other than 127.0.0.1 clients need a token")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="a name by which clients reach the service; IP addresses, localhost and the names "
        "of this machine are allowed (repeatable)"
    ),
]


@with_configuration
def serve(
    chosen: Chosen,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"{NAMES_OF_POLICIES}; default: the last trained "
            "policy; none: retrieval alone, for samplers that set retrieval.service",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    allow_host: AllowHost = None,
) -> None:
    """Serve a policy and the index to OpenAI clients, MCP agents and samplers."""
    task = chosen.task("index")
    _service("serve").serve(task, policy, host, port, allow_host or ())


@with_configuration
def record(
    chosen: Chosen,
    policy: PolicyOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="recording to append to; default: recorded.jsonl of the run's directory",
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="questions with gold answers, found by the user's first message"),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="musique, hotpotqa, ..., if the questions have its fields")
    ] = "questions",
    host: Host = "127.0.0.1",
    port: Port = 8765,
    allow_host: AllowHost = None,
) -> None:
    """Serve a policy to agents with their own loop, and record it for training."""
    task = chosen.task("index")
    path = output or task.run_settings.run_dir / "recorded.jsonl"
    asked = (questions, dataset) if questions else None
    _service("record").record(task, policy, path, host, port, allow_host or (), asked)


def _service(command: str) -> ModuleType:
    try:
        from pipeline.serving import serve as services
    except ImportError as error:
        raise missing(f"steep {command} needs {error.name}", "serve") from None
    silence_model_loading()
    return services
