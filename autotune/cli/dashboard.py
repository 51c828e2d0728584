"""``autotune dashboard``: optuna-dashboard on the studies' storage."""

from __future__ import annotations

import os
import socketserver
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.base.secrets import without_url_password
from autotune.cli._study_folder import STUDIES
from autotune.cli.console import remark

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from optuna.storages import RDBStorage

_LOCK_PATIENCE_S = 60
_LOOPBACK = ("127.0.0.1", "localhost")


def dashboard(
    storage: Annotated[
        str | None, typer.Option(help="Database URL of the studies. [default: sqlite:///studies/autotune.db]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's can reach it too.")] = (
        "127.0.0.1"
    ),
    artifacts: Annotated[
        Path | None, typer.Option(help="Folder of the artifacts. [default: studies/artifacts]")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser where there is a display.")
    ] = True,
) -> None:
    """Open optuna-dashboard on the studies: trials, which are feasible, notes, curves, logs. Ctrl-C ends it.

    Example: autotune dashboard --port 8080 --no-browser
    """
    url = storage or f"sqlite:///{STUDIES / 'autotune.db'}"
    application = _application(_open_storage(url), artifacts)
    with _server(host, port, application) as server:
        address = f"http://{host}:{server.server_port}/"
        typer.echo(f"Dashboard of {without_url_password(url)}: {address}")
        if host not in _LOOPBACK:
            remark("Everyone who reaches this address can read and change the studies.", style="yellow")
        remark("Press Ctrl-C to end it.")
        sys.stdout.flush()
        if browser and sys.stdout.isatty() and _has_display():
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            remark("Ended.")


def _open_storage(url: str) -> RDBStorage:
    """The studies' database, which must exist: a viewer creates nothing."""
    from optuna.storages import RDBStorage

    shown = without_url_password(url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(
            f"storage '{shown}': not a database URL.", "Write e.g. --storage sqlite:///studies/autotune.db."
        ) from error
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and not Path(parsed.database or "").is_file():
        raise EnvironmentProblemError(
            f"storage {shown}: there is no such database.",
            "Run 'autotune search' first, or name another with --storage.",
        )
    connect = {"timeout": _LOCK_PATIENCE_S} if sqlite else {}
    try:
        storage = RDBStorage(url, engine_kwargs={"connect_args": connect}, skip_table_creation=True)
        storage.get_all_studies()
    except Exception as error:
        deepest: BaseException = error
        while (below := deepest.__cause__ or deepest.__context__) is not None:
            deepest = below
        reason = " ".join(str(deepest).split())[:160]
        raise EnvironmentProblemError(
            f"storage {shown}: no studies can be read from it ({without_url_password(reason)}).",
            "Name the database of an 'autotune search' with --storage.",
        ) from error
    return storage


def _application(storage: RDBStorage, artifacts: Path | None) -> WSGIApplication:
    from optuna.artifacts import FileSystemArtifactStore
    from optuna_dashboard import wsgi

    folder = artifacts or STUDIES / "artifacts"
    if artifacts is not None and not folder.is_dir():
        raise UsageError(f"--artifacts {folder}: there is no such folder.", "Leave it out, or name the right one.")
    store = FileSystemArtifactStore(folder) if folder.is_dir() else None
    application: WSGIApplication = wsgi(storage, artifact_store=store)
    return application


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A page that loads does not wait for a plot that is computed."""

    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""


def _server(host: str, port: int, application: WSGIApplication) -> _Server:
    try:
        return make_server(host, port, application, server_class=_Server, handler_class=_Handler)
    except OSError as error:
        raise EnvironmentProblemError(
            f"dashboard: {host}:{port} cannot be listened on ({error.strerror or error}).",
            "Choose another port with --port.",
        ) from error
    except OverflowError as error:
        raise UsageError(f"--port {port}: not a port.", "Use 0 to 65535.") from error


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
