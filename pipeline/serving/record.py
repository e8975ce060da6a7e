"""Serve a policy to agents as a plain chat model, and record their conversations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pipeline.core.errors import missing
from pipeline.engine.job import say
from pipeline.engine.stage import StageTask
from pipeline.rollout.recorded import recorded_trajectories
from pipeline.serving.asking import asked_policies
from pipeline.serving.question_sets import told_questions
from pipeline.serving.serve import Served, decoding_of, literal, policy_tokenizer, token_for


def record(
    task: StageTask,
    policy: str | None,
    output: Path,
    host: str,
    port: int,
    allow_host: Sequence[str] = (),
    questions: tuple[Path, str] | None = None,
) -> None:
    """Serve the policy ``policy`` of the configuration of ``task`` until a signal.

    Turns are appended to ``output`` (`pipeline.serving.recorder`), with the decoding of the block
    ``sampling`` where a request says nothing else. ``questions`` are a file and its data set. The
    other arguments, the token and the errors are as in `pipeline.serving.serve.serve`; no index is
    needed.
    """
    try:
        from pipeline.knowledge.retrieval.remote.hosts import own_names
        from pipeline.knowledge.retrieval.remote.server import Server, bind_socket, guarded_app
        from pipeline.knowledge.retrieval.remote.server import serve as serve_until_signal
        from pipeline.serving.policy import ServedPolicy
        from pipeline.serving.recorder import Log, RecordedModel, recorder_routes
    except ImportError as error:
        raise missing(f"steep record needs {error.name}", "serve") from None
    from pipeline.serving.opening import open_turns_in_process

    asked = told_questions(*questions) if questions else []
    with bind_socket(host, port) as socket, closing(Log(output)) as log:
        [opened] = asked_policies(task, [] if policy is None else [policy], searching=False)
        app = guarded_app({name.lower() for name in allow_host} | own_names(host), token_for(host))
        server = Server(app)
        served = Served(server)
        answering = ServedPolicy(opened.named.name, output, served.fail)
        config = opened.context.config
        model = RecordedModel(
            answering, policy_tokenizer(config), decoding_of(config, config.sampling.temperature),
            log=log, policy_id=opened.policy.fingerprint, questions=asked,
        )  # fmt: skip
        app.include_router(recorder_routes(model, answering.name))
        try:
            with served.beside(task, [opened], answering, open_turns_in_process):
                serve_until_signal(
                    server,
                    socket,
                    lambda: say(
                        f"recording to {output} at http://{literal(host)}:"
                        f"{socket.getsockname()[1]}/v1; Ctrl-C ends it"
                    ),
                )
        finally:
            _, counts = recorded_trajectories([output], config.grammar)
            say(f"{output}: {counts}")
