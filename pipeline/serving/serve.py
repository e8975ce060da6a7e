"""Serve an index and a policy that answers with it, or a plain policy whose turns are recorded.

It imports the packages of the extra ``serve``.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from socket import socket as Socket

from pipeline.config import Config
from pipeline.core.errors import ConfigError, EngineError, SteepError
from pipeline.core.model_files import find_model
from pipeline.engine.fingerprint import content_of, model_identity
from pipeline.engine.job import say
from pipeline.engine.run import run
from pipeline.engine.stage import StageTask
from pipeline.engine.store import read_manifest
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity
from pipeline.knowledge.retrieval.remote.hosts import is_loopback, own_names
from pipeline.knowledge.retrieval.remote.server import (
    Server,
    bind_socket,
    create_app,
    guarded_app,
)
from pipeline.knowledge.retrieval.remote.server import serve as serve_until_signal
from pipeline.knowledge.retrieval.remote.wire import TOKEN, usable_token
from pipeline.llm.tokenizer import Tokenizer, model_tokenizer
from pipeline.rollout.recorded import recorded_trajectories
from pipeline.serving.asking import (
    AskedPolicy,
    OpeningInProcess,
    asked_policies,
    open_in_process,
    open_turns_in_process,
    opened,
)
from pipeline.serving.chat import chat_routes
from pipeline.serving.evaluations import told_questions
from pipeline.serving.mcp_tools import add_tools
from pipeline.serving.named_policies import finished
from pipeline.serving.policy import ServedPolicy
from pipeline.serving.recorder import Log, RecordedModel, recorder_routes
from pipeline.serving.turns import Decoding, PlainModel
from tasks.evaluate_policy import EvaluatePolicy
from tasks.index import knowledge

NO_POLICY = "none"


def serve(
    task: StageTask, policy: str | None, host: str, port: int, allow_host: Sequence[str] = ()
) -> None:
    """Serve retrieval, and the policy ``policy`` of the configuration of ``task``, until a signal.

    ``policy`` is as in `steep ask`; None is the last trained one. `NO_POLICY` serves retrieval
    alone, with the settings of sampling, and runs the stages up to the index if needed. Clients
    name the service by an address, by a name of this machine, or by a name in ``allow_host``. On
    another address than the loopback interface they need the token in the environment variable
    ``STEEP_TOKEN``, which is made up and printed if it is not set.

    Raises ConfigError when there is nothing to retrieve or the token is unusable, InputError when
    the port is in use or the policy is unusable, StoreError when an output that it reads is damaged
    or the policy is not trained.
    """
    evaluating = task.clone(EvaluatePolicy, number=0)
    index = knowledge(task if policy == NO_POLICY else evaluating)["index"]
    settings = (task if policy == NO_POLICY else evaluating).settings
    if settings.retrieval.variant == "none":
        raise ConfigError("retrieval.variant is none, so there is nothing to serve; choose another")
    # A port in use is an error before the index is built.
    with bind_socket(host, port) as socket, bind_socket("127.0.0.1", 0) as private:
        token = token_for(host)
        # The process of the policy retrieves at a port of its own, so that the index is in memory
        # once, and no client keeps it from its documents.
        own = f"retrieval.service=http://127.0.0.1:{private.getsockname()[1]}"
        asking = task.clone(overrides=(*task.overrides, own))
        names = [] if policy is None else [policy]
        asked = [] if policy == NO_POLICY else asked_policies(asking, names)
        if policy == NO_POLICY:
            run(index)
        stages = {**index.inputs, "index": index}
        directories = finished(stages)
        identity = RetrievalIdentity.from_settings(
            settings.retrieval,
            {name: stage.key.fingerprint for name, stage in stages.items()},
            _reranker(index),
        )
        corpus = directories["corpus"]
        retriever = open_retriever(
            settings.retrieval, settings.index, corpus, directories["graph"], directories["index"],
            cache_dir=settings.cache_dir,
        )  # fmt: skip
        retriever.retrieve([Query("which models", ("are loaded",))])  # loads the models, or raises
        app = create_app(
            retriever,
            identity,
            read_manifest(directories["index"])["counts"],
            names={name.lower() for name in allow_host} | own_names(host),
            token=token,
        )
        served = Served(Server(app))
        answering = ServedPolicy(asked[0].named.name, corpus, served.fail) if asked else None
        if answering is not None:
            config = asked[0].context.config
            decoding = decoding_of(config, config.evaluation.temperature)
            plain = PlainModel(answering, policy_tokenizer(config), decoding)
            app.include_router(chat_routes(answering, plain))
        add_tools(app, app.state.batcher, answering)
        sockets = [socket, private] if asked else [socket]
        what = f"retrieval {identity.fingerprint} at {_address(host, socket)}; Ctrl-C ends it"
        try:
            served.until_signal(sockets, what, asking, asked, answering, open_in_process)
        finally:
            retriever.close()
            say("retrieval ended")


def record(
    task: StageTask,
    policy: str | None,
    output: Path,
    host: str,
    port: int,
    allow_host: Sequence[str] = (),
    questions: tuple[Path, str] | None = None,
) -> None:
    """Serve the policy ``policy`` as a plain chat model until a signal, and record conversations.

    Turns are appended to ``output`` (`pipeline.serving.recorder`), with the decoding of the block
    ``sampling`` where a request says nothing else. ``questions`` are a file and its data set. The
    other arguments, the token and the errors are as in `serve`; no index is needed.
    """
    gold = told_questions(*questions) if questions else []
    with bind_socket(host, port) as socket, closing(Log(output)) as log:
        [asked] = asked_policies(task, [] if policy is None else [policy], searching=False)
        app = guarded_app({name.lower() for name in allow_host} | own_names(host), token_for(host))
        served = Served(Server(app))
        answering = ServedPolicy(asked.named.name, output, served.fail)
        config = asked.context.config
        model = RecordedModel(
            answering, policy_tokenizer(config), decoding_of(config, config.sampling.temperature),
            log=log, policy_id=asked.policy.fingerprint, questions=gold,
        )  # fmt: skip
        app.include_router(recorder_routes(model, answering.name))
        what = f"recording to {output} at {_address(host, socket)}/v1; Ctrl-C ends it"
        try:
            served.until_signal([socket], what, task, [asked], answering, open_turns_in_process)
        finally:
            _, counts = recorded_trajectories([output], config.grammar)
            say(f"{output}: {counts}")


class Served:
    """A server that ends when its policy fails."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._failure: Exception | None = None
        self._ended = threading.Event()

    def fail(self, error: Exception) -> None:
        """End the server; `until_signal` raises the first error."""
        self._failure = self._failure or error
        self._server.should_exit = True

    def until_signal(
        self,
        sockets: Sequence[Socket],
        what: str,
        task: StageTask,
        asked: Sequence[AskedPolicy],
        policy: ServedPolicy | None,
        opening: OpeningInProcess,
    ) -> None:
        """Say ``what`` is served, and open the policy's process while the server runs.

        All ``sockets`` but the first are private: there the process retrieves from the server.
        """

        def open_policy(policy: ServedPolicy) -> None:
            try:
                with opened(task, asked, say, opening, self._ended) as [process]:
                    policy.process = process
                    self._ended.wait()
            except SteepError as error:
                if policy.process is not None or not self._ended.is_set():
                    self.fail(error)
            except Exception as error:  # noqa: BLE001 - raised in the thread of the server
                self.fail(EngineError(f"{type(error).__name__}: {error}"))

        thread = threading.Thread(target=open_policy, args=[policy], daemon=True)
        if policy is not None:
            thread.start()
        try:
            serve_until_signal(self._server, sockets[0], lambda: say(what), *sockets[1:])
        finally:
            self._ended.set()
            if policy is not None:
                thread.join()
        if self._failure is not None:
            raise self._failure


def token_for(host: str) -> str | None:
    """The token that clients of ``host`` need; None on the loopback interface.

    Raises ConfigError for a token that is empty or cannot be sent in a header.
    """
    if is_loopback(host):
        return None
    if TOKEN not in os.environ:
        os.environ[TOKEN] = secrets.token_urlsafe(24)
        say(f"clients need the token {os.environ[TOKEN]}")
    remedy = "set it to a long random text, or unset it to get one"
    return usable_token(os.environ[TOKEN], f"clients of {host} need a token: {remedy}")


def decoding_of(config: Config, temperature: float) -> Decoding:
    """The decoding of single turns."""
    return Decoding(
        temperature=temperature,
        top_p=config.sampling.top_p,
        max_tokens=config.sampling.max_segment_tokens,
        max_model_len=config.engine.max_model_len,
        thinking=config.model.thinking,
    )


def policy_tokenizer(config: Config) -> Callable[[], Tokenizer]:
    """Opens the tokenizer of the policies, with their chat template."""
    return lambda: model_tokenizer(find_model(config.model.base), config.model.chat_template)


def _address(host: str, socket: Socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{socket.getsockname()[1]}"


def _reranker(task: StageTask) -> str | None:
    """The content hash of the reranker's model, as in the fingerprints of stages that roll out."""
    model = task.settings.retrieval.reranker.model
    if not model:
        return None
    return content_of(task.settings, {"reranker": model_identity(model)})["reranker"]
