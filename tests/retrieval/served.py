"""A retrieval service on a free port, in a thread, over a fake retriever."""

import threading
from contextlib import contextmanager

import uvicorn

from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem
from pipeline.retrieval.fingerprint import RetrievalIdentity
from pipeline.retrieval.remote.connections import ServiceConnection
from pipeline.retrieval.remote.server import bind_socket, create_app, server_config
from tests.waiting import LIMIT

IDENTITY = RetrievalIdentity("corpus-1", "graph-1", "index-1", None, {"top_k": 5, "tau": 0.2})


class FakeRetriever:
    """Returns a chunk and a triplet per query; records batches; fails for subqueries in ``bad``."""

    def __init__(self, gate=None, bad=()):
        self.timing = {"semantic": 0.0, "graph": 0.0, "ppr": 0.0}
        self.batches = []
        self.gate = gate
        self.bad = bad

    def retrieve(self, queries):
        self.batches.append(list(queries))
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        if any(query.subquery in self.bad for query in queries):
            raise RetrievalError("retrieval failed")
        return [
            [
                ContextItem("chunk", f"c-{query.subquery}", "T", f"on {query.subquery}", 1 / 3),
                ContextItem("triplet", f"t-{query.subquery}", "", "|".join(query.entities), 1e-9),
            ]
            for query in queries
        ]

    def close(self):
        pass


class Running:
    """A service in a thread, with its address and methods to stop it."""

    def __init__(self, app, port=0, connection=ServiceConnection):
        self.socket = bind_socket("127.0.0.1", port)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = server_config(app)
        config.http = connection
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))

    def end(self):
        """Stop the server after running requests; then connections are refused."""
        self.server.should_exit = True

    def wait_until_refusing(self):
        """Wait until the server refuses connections."""
        while self.socket.fileno() != -1:
            self.thread.join(0.01)


@contextmanager
def served(
    retriever, identity=IDENTITY, *, port=0, names=(), max_batch=256, connection=ServiceConnection
):
    app = create_app(retriever, identity, {"chunks": 2}, names=names, max_batch=max_batch)
    running = Running(app, port, connection)
    running.thread.start()
    while not running.server.started:
        running.thread.join(0.01)
        assert running.thread.is_alive()
    try:
        yield running
    finally:
        running.end()
        running.thread.join(LIMIT)
        running.socket.close()
