"""A retrieval service on a free port, in a thread, over a fake retriever."""

import threading

from pipeline.core.records import ContextItem
from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity
from pipeline.knowledge.retrieval.remote.server import Server, bind_socket, create_app
from tests.waiting import LIMIT

# No proxy, and no certificates, which httpx would read for every request, 23 ms.
PLAIN = {"trust_env": False, "verify": False, "timeout": LIMIT}
IDENTITY = RetrievalIdentity("corpus-1", "graph-1", "index-1", None, {"top_k": 5, "tau": 0.2})


class FakeRetriever:
    """Returns a chunk and a triplet per query; records batches; raises ``bad[subquery]``."""

    def __init__(self, gate=None, bad=None):
        self.timing = {"semantic": 0.0, "graph": 0.0, "ppr": 0.0}
        self.batches = []
        self.gate = gate
        self.bad = bad or {}

    def retrieve(self, queries):
        self.batches.append(list(queries))
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        for query in queries:
            if query.subquery in self.bad:
                raise self.bad[query.subquery]
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
    """An application served in a thread; ends with the block."""

    def __init__(self, app, port=0):
        self.socket = bind_socket("127.0.0.1", port)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(app)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.01)
            assert self.thread.is_alive()
        return self

    def __exit__(self, *_):
        self.end()
        self.thread.join(LIMIT)
        self.socket.close()

    def end(self):
        """Stop the server after running requests; then connections are refused."""
        self.server.should_exit = True

    def wait_until_refusing(self):
        """Wait until the server refuses connections."""
        while self.socket.fileno() != -1:
            self.thread.join(0.01)


def served(retriever, identity=IDENTITY, *, port=0, names=(), token=None):
    """The retrieval service over ``retriever``, running within a block."""
    app = create_app(retriever, identity, {"chunks": 2}, names=names, token=token)
    return Running(app, port)


def answering(status, body, headers):
    """A server that gives every request the same answer; to GET /health status 200 and no body."""

    async def app(scope, receive, send):
        health = scope["path"] == "/health"
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        start = {"type": "http.response.start", "status": 200 if health else status}
        await send({**start, "headers": named})
        await send({"type": "http.response.body", "body": b"{}" if health else body.encode()})

    return Running(app)
