"""The ``autotune`` command."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer

from autotune import __version__
from autotune.base.errors import AutotuneError, ExitCode
from autotune.cli.bench import EXAMPLES as BENCH_EXAMPLES
from autotune.cli.bench import bench
from autotune.cli.catalogue import gpus, models, spaces_app
from autotune.cli.dashboard import dashboard
from autotune.cli.diagnose import diagnose
from autotune.cli.doctor import doctor
from autotune.cli.export import export
from autotune.cli.plan import EXAMPLES as PLAN_EXAMPLES
from autotune.cli.plan import plan
from autotune.cli.report import report
from autotune.cli.search import EXAMPLES as SEARCH_EXAMPLES
from autotune.cli.search import search
from autotune.cli.serve import chat, serve
from autotune.cli.studies import compare, show, studies
from autotune.cli.verify import verify

app = typer.Typer(
    name="autotune",
    help="Finds the vLLM engine settings that carry the most traffic while the latency objective holds, and proves it.",
    epilog="Start with: autotune search --gpu t4 --model qwen3-4b --slo-p99 10s",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # Rich's own markup swallows "[default: ...]" and "vllm-autotune[chat]"
    context_settings={"help_option_names": ["-h", "--help"]},
)


_PARSER_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What the parser raises for wrong usage: some versions of Typer carry a click of their own."""


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["AUTOTUNE_DEBUG"] = "1"


app.command(epilog=SEARCH_EXAMPLES)(search)
app.command(epilog=PLAN_EXAMPLES)(plan)
app.command(epilog=BENCH_EXAMPLES)(bench)
for _command in (
    verify,
    serve,
    chat,
    export,
    report,
    dashboard,
    studies,
    show,
    compare,
    gpus,
    models,
    diagnose,
    doctor,
):
    app.command()(_command)
app.add_typer(spaces_app, name="spaces")


def run() -> None:
    """Entry point: errors that a user can act on are one line; the exit codes are the design's."""
    try:
        code = app(standalone_mode=False)
    except AutotuneError as error:
        if os.environ.get("AUTOTUNE_DEBUG"):
            traceback.print_exc()
        _fail(str(error), error.exit_code)
    except typer.Abort:
        _fail("interrupted.", ExitCode.INTERRUPTED)
    except _PARSER_ERROR as error:
        _fail(_usage_text(error), ExitCode.USAGE)
    except KeyboardInterrupt:
        _fail("interrupted.", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.CHECK_FAILED)
    sys.exit(code or ExitCode.DONE)


def _usage_text(error: Any) -> str:
    """What was wrong, and the help of the command where it was; nothing where the help has just been shown."""
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    if not message:
        return ""
    words: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    end = "" if message.endswith(("?", "!")) else "."
    return f"{message}{end} See '{' '.join(['autotune', *words])} --help'."


def _fail(message: str, code: ExitCode) -> None:
    if message:
        print(f"autotune: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    run()
