"""Build the index of a configuration if needed, and serve its retrieval over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.errors import ConfigError, DependencyError
from pipeline.run.store import Depth, read_manifest
from tasks.base import StageTask, say
from tasks.fingerprint import model_identity
from tasks.index import knowledge
from tasks.run import run


def serve_retrieval(index: StageTask, host: str, port: int, allow_host: Sequence[str] = ()) -> None:
    """Run the index of the configuration of ``index`` if needed, and serve it until a signal.

    Clients name the service by an address, by a name of this machine, or by a name in
    ``allow_host``.

    Raises ConfigError when there is nothing to retrieve, InputError when the port is in use,
    DependencyError when the packages of the extra ``serve`` are missing, StoreError when an output
    that it reads is damaged.
    """
    settings, index = index.settings, knowledge(index)["index"]
    if settings.retrieval.variant == "none":
        raise ConfigError("retrieval.variant is none, so there is nothing to serve; choose another")
    try:
        from pipeline.retrieval.remote.hosts import own_names
        from pipeline.retrieval.remote.server import bind_socket, create_app, serve
    except ImportError as error:
        raise DependencyError(
            f"serve-retrieval needs {error.name}; pip install 'steep[serve]'"
        ) from None
    from pipeline.retrieval.base import Query
    from pipeline.retrieval.factory import open_retriever
    from pipeline.retrieval.fingerprint import RetrievalIdentity

    with bind_socket(host, port) as socket:  # fails for a port in use before the index is built
        directory = run(index)
        stages = {**index.upstream(), "index": index}
        for task in stages.values():
            task.check_output(Depth.SIZES)
        fingerprints = {name: task.key.fingerprint for name, task in stages.items()}
        identity = RetrievalIdentity.from_settings(
            settings.retrieval, fingerprints, _reranker(index)
        )
        corpus, graph = (stages[name].directory for name in ("corpus", "graph"))
        retriever = open_retriever(
            settings.retrieval, settings.index, corpus, graph, directory,
            cache_dir=settings.cache_dir,
        )  # fmt: skip
        retriever.retrieve([Query("which models", ("are loaded",))])  # loads the models, or raises
        rows = read_manifest(directory)["counts"]
        literal = f"[{host}]" if ":" in host else host
        address = f"http://{literal}:{socket.getsockname()[1]}"
        names = {name.lower() for name in allow_host} | own_names(host)
        try:
            serve(
                create_app(retriever, identity, rows, names=names),
                socket,
                lambda: say(f"retrieval {identity.fingerprint} at {address}; Ctrl-C ends it"),
            )
        finally:
            retriever.close()
            say("retrieval ended")


def _reranker(task: StageTask) -> str | None:
    """The content hash of the reranker's model, as in the fingerprints of stages that roll out."""
    model = task.settings.retrieval.reranker.model
    if not model:
        return None
    return task.content_of({"reranker": model_identity(model)})["reranker"]
