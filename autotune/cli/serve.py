"""``autotune serve`` and ``autotune chat``: use a configuration that was found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.base.errors import UsageError
from autotune.cli._chat import Address, chat_in_browser, chat_in_terminal, has_chainlit, running_engine
from autotune.cli._launch import check_address, choose_engine, launch_command, launch_environment, ready_words
from autotune.cli.console import remark
from autotune.export import read_best
from autotune.spec import EngineChoice

File = Annotated[Path, typer.Argument(help="A best.yaml that a search left or 'autotune export' wrote.")]
Engine = Annotated[EngineChoice, typer.Option(help="Which engine; auto takes a vLLM that is installed here.")]
VllmCommand = Annotated[
    str | None, typer.Option(help="How to start vLLM, where it is not on the PATH, e.g. /env/bin/vllm.")
]
TimeScale = Annotated[float, typer.Option(min=0.01, help="Speed of the simulated engine's clock.")]


def serve(
    file: File,
    extra: Annotated[list[str] | None, typer.Argument(help="Further words for vLLM, after '--'.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets others in.")] = "127.0.0.1",
    engine: Engine = EngineChoice.AUTO,
    vllm_command: VllmCommand = None,
    time_scale: TimeScale = 1.0,
) -> None:
    """Start the engine with a configuration, in the foreground; Ctrl-C stops it.

    Example: autotune serve studies/t4-qwen3-4b/best.yaml --port 8000
    """
    best = read_best(file)
    choice = choose_engine(best, engine, vllm_command)
    check_address(host, port)
    for caution in choice.cautions:
        remark(caution, style="yellow")
    remark(f"Starting {choice.words} with {file} on http://{host}:{port} (Ctrl-C stops it){ready_words(best)}.")
    command = launch_command(best, choice, host, port, extra or (), time_scale)
    sys.stdout.flush()
    sys.stderr.flush()
    # The engine takes this process's place: signals, terminal and exit code are its own.
    os.execvpe(command[0], command, launch_environment(best, choice))  # noqa: S606


def chat(
    file: Annotated[
        Path | None, typer.Argument(help="A best.yaml that a search left or 'autotune export' wrote.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Chat with a server that runs already, rather than starting one.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name at that server. [default: its first]")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Chat in this terminal, not in a browser.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the chat page.")] = 8080,
    host: Annotated[str, typer.Option(help="Address of the chat page; 0.0.0.0 lets others in.")] = "127.0.0.1",
    engine: Engine = EngineChoice.AUTO,
    vllm_command: VllmCommand = None,
    time_scale: TimeScale = 1.0,
) -> None:
    """Try a configuration in a chat: starts the engine and a Chainlit page, or a chat in the terminal.

    The page needs the extra 'chat': pip install 'vllm-autotune[chat]'.

    Example: autotune chat studies/t4-qwen3-4b/best.yaml
    """
    if (file is None) == (url is None):
        raise UsageError("chat: give either a best.yaml or --url.", "Write e.g. autotune chat studies/NAME/best.yaml.")
    if not terminal and not has_chainlit():
        if not sys.stdin.isatty():
            raise UsageError(
                "chat: Chainlit is not installed.", "Install 'vllm-autotune[chat]', or chat here with --terminal."
            )
        remark("Chainlit is not installed (pip install 'vllm-autotune[chat]'): chatting in this terminal.")
        terminal = True
    if not terminal:
        check_address(host, port)
    if url is not None:
        _converse(Address.of(url, model), terminal, host, port, max_tokens)
        return
    assert file is not None
    best = read_best(file)
    choice = choose_engine(best, engine, vllm_command)
    for caution in choice.cautions:
        remark(caution, style="yellow")
    remark(f"Starting {choice.words} with {file}{ready_words(best)}.")
    with running_engine(best, choice, time_scale) as address:
        _converse(address, terminal, host, port, max_tokens)


def _converse(address: Address, terminal: bool, host: str, port: int, max_tokens: int) -> None:
    if terminal:
        chat_in_terminal(address, max_tokens)
    else:
        chat_in_browser(address, host, port, max_tokens)
