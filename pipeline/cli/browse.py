"""``steep browse``: pairs, trajectories and runs as pages in the web browser."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from pipeline.cli.options import Chosen, refuse_options, with_configuration
from pipeline.core.errors import SteepError, StoreError, missing

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.engine.stage import StageTask
    from pipeline.look.browse.site import RunEntry, Site
    from pipeline.rollout.answering import PolicyProcess

PORT = 8766
_DEMONSTRATION = (
    "the demonstration run: two rounds of TeaRAG on 300 generated documents with a tiny model, "
    "made by steep run --variant demo"
)


@with_configuration
def browse(
    context: typer.Context,
    chosen: Chosen,
    host: Annotated[
        str, typer.Option(help="address to listen on; any but loopback needs a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = PORT,
    demo: Annotated[
        bool, typer.Option("--demo", help="show the small finished run that comes with steep")
    ] = False,
) -> None:
    """Show pairs, trajectories and runs in the web browser.

    The other runs in the same directory can be opened and compared too. `browse` writes one file
    of a run: store/.hashes.json, which remembers the content of model files.
    """
    if demo:
        refuse_options(context, ("config", "variant", "set", "data"), "with --demo")
        typer.echo(_DEMONSTRATION)
        with TemporaryDirectory(prefix="steep-demo-") as cache:
            _serve(demonstration(Path(cache)), host, port)
    else:
        _serve(open_site(chosen.task()), host, port)


def demonstration(cache: Path) -> Site:
    """The run that comes with steep. It is read where it is; ``cache`` gets the side table."""
    from pipeline.core.shipped import DEMONSTRATION, TINY_READER
    from pipeline.look.browse.site import RunEntry, Site

    reason = "the demonstration run comes without its policies and indexes, so it cannot be asked; "
    entry = RunEntry(
        DEMONSTRATION.name,
        DEMONSTRATION / "store",
        base_model=TINY_READER,
        not_asked=f"{reason}make them with: steep run --variant demo",
    )
    return Site({entry.name: entry}, cache)


def open_site(task: StageTask) -> Site:
    """The runs of the directory ``runs_dir``, the configuration's run first."""
    from pipeline.engine.store import MANIFEST
    from pipeline.look.browse.site import RunEntry, Site

    settings = task.run_settings
    first = RunEntry(
        settings.name,
        settings.run_dir / "store",
        lambda: _current(task),
        _base_model(settings),
        RunPolicies(str(task.config), tuple(task.overrides), task.data and Path(task.data)),
    )

    def others(known: Collection[str]) -> dict[str, RunEntry]:
        runs = Path(settings.runs_dir)
        sampling = ("sample", "evaluate-policy")  # a run without rounds only evaluates
        folders = {
            each for stage in sampling for each in runs.glob(f"*/store/{stage}/*/{MANIFEST}")
        }
        found = sorted({folder.parents[3] for folder in folders})
        return {folder.name: _other(folder) for folder in found if folder.name not in known}

    return Site({settings.name: first}, Path(settings.cache_dir) / "browse", others)


def _current(task: StageTask) -> list[Path] | None:
    """The outputs that the configuration names today; None if it names a missing file."""
    from pipeline.engine.status import complete_outputs

    try:
        return list(complete_outputs(task).values())
    except SteepError as error:
        reason = f"because the configuration's are not known: {error}"
        typer.echo(f"the newest outputs are shown, {reason}", err=True)
        return None


def _base_model(settings: Config) -> Path | None:
    from pipeline.core.model_files import find_model

    directory = Path(find_model(settings.model.base))
    return directory if directory.is_dir() else None


def _other(folder: Path) -> RunEntry:
    """A run beside the configured one; its ``config.yaml`` names its base model and policies.

    In a copied or renamed folder ``config.yaml`` names the original run. The policies of that run
    are not offered under the name of the folder.
    """
    from pipeline.config import load
    from pipeline.engine.stage import RESOLVED
    from pipeline.look.browse.site import RunEntry

    entry, file = RunEntry(folder.name, folder / "store"), folder / RESOLVED
    if not file.is_file():
        return entry
    try:
        settings = load(str(file))
    except SteepError as error:
        return replace(entry, not_asked=f"the policies of run {folder.name} are not known: {error}")
    of_folder = settings.run_dir.resolve() == folder.resolve()
    return replace(
        entry,
        base_model=_base_model(settings),
        policies=RunPolicies(str(file)) if of_folder else None,
        not_asked=f"{file} is the configuration of another run ({settings.run_dir.resolve()}); set "
        "its name and runs_dir to the values for this folder",
    )


class RunPolicies(Chosen):
    """The policies of a configuration, as `pipeline.look.browse.asking.Policies`."""

    def names(self) -> tuple[list[str], str]:
        """The base model and the trained policies, and a reason if there are none."""
        from pipeline.config.evaluation import BASE
        from pipeline.serving.named_policies import complete_policies

        try:
            trained = [policy.name for policy in complete_policies(self.task("evaluate"))]
        except StoreError as error:
            return [BASE], str(error).removesuffix(", or name another with --policy")
        return list(dict.fromkeys([BASE, *trained])), ""

    def made(self, names: Sequence[str]) -> object:
        """The outputs that hold the policies, and when they were completed."""
        from pipeline.engine.store import MANIFEST
        from pipeline.serving.named_policies import find_policy

        task = self.task("evaluate")
        found = [find_policy(task, name).directory for name in names]
        return [(one, (one / MANIFEST).stat().st_mtime_ns) for one in found if one is not None]

    def opened(
        self, names: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Sequence[PolicyProcess]]:
        """The processes of the policies, as `pipeline.serving.asking.opened` gives them."""
        from pipeline.serving.asking import asked_policies, opened

        task = self.task("evaluate")
        return opened(task, asked_policies(task, names), tell)


def _serve(site: Site, host: str, port: int) -> None:
    _ = site.first  # its errors end the command
    try:
        from pipeline.knowledge.retrieval.remote.hosts import is_loopback
        from pipeline.knowledge.retrieval.remote.server import Server, bind_socket, serve
        from pipeline.look.browse.app import create_app
        from pipeline.look.browse.asking import Desk
    except ImportError as error:
        raise missing(f"steep browse needs {error.name}", "browse") from None
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    on = bind_socket(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{on.getsockname()[1]}/"
    if token is not None:
        address += "?" + urlencode({"token": token})
    desk = Desk()
    try:
        serve(
            Server(create_app(site, token, desk)),
            on,
            lambda: typer.echo(f"{address}  (Ctrl-C ends it)"),
        )
    finally:
        desk.close()
