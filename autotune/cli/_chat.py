"""The chat: an engine of our own for its time, in the terminal or on a Chainlit page."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from autotune.base.clock import WallClock
from autotune.base.errors import EnvironmentProblemError
from autotune.cli._chat_stream import API_KEY, MAX_TOKENS, MODEL, URL, Message, describe_error, piece_of
from autotune.cli._launch import Choice
from autotune.cli.console import remark
from autotune.engine import Engine, EngineStartError, LaunchRequest, SimulatedEngine, VllmEngine
from autotune.export import BestFile
from autotune.search.engines import matching_device

_LEAST_START_S = 900.0
_START_MARGIN = 3.0
_TIMEOUT = httpx.Timeout(10.0, read=300.0)
_END_WORDS = frozenset({"exit", "quit", "/exit", "/quit"})


@dataclass(frozen=True, slots=True)
class Address:
    """A server, the name that requests carry, what to call its model, and how fast its clock runs."""

    url: str
    model: str
    title: str
    simulated: bool = False
    time_scale: float = 1.0

    @classmethod
    def of(cls, url: str, model: str | None) -> Address:
        """A server that runs already.

        Raises:
            EnvironmentProblemError: it does not answer, or names no model.
        """
        base = url.rstrip("/").removesuffix("/v1")
        if model is not None:
            return cls(base, model, model)
        try:
            answer = httpx.get(f"{base}/v1/models", timeout=_TIMEOUT, headers=_headers())
            answer.raise_for_status()
            name = str(answer.json()["data"][0]["id"])
            return cls(base, name, name)
        except httpx.ConnectError as error:
            raise EnvironmentProblemError(
                f"{base}: no server answers there.", "Is the server running, and is --url right?"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise EnvironmentProblemError(
                f"{base}: it does not tell its models ({type(error).__name__}).",
                "Check --url, or name one with --model.",
            ) from error


def has_chainlit() -> bool:
    """Whether the page can be shown."""
    return importlib.util.find_spec("chainlit") is not None


@contextmanager
def running_engine(best: BestFile, choice: Choice, time_scale: float = 1.0) -> Iterator[Address]:
    """An engine with this configuration, on loopback, for as long as the block runs.

    Raises:
        EnvironmentProblemError: it does not start; the message has the cause from its log.
    """
    expected = best.provenance.start_s if best.provenance is not None else None
    with tempfile.TemporaryDirectory(prefix="autotune-chat-") as folder, asyncio.Runner() as runner:
        request = LaunchRequest(
            model=best.model,
            arguments=best.arguments,
            folder=Path(folder),
            start_deadline=max(_LEAST_START_S, _START_MARGIN * (expected or 0.0)),
            environment=best.environment,
        )
        try:
            running = runner.run(_engine(choice, time_scale).start(request))
        except EngineStartError as error:
            failure = error.failure
            line = failure.line.strip()[:200] or "nothing in the log"
            raise EnvironmentProblemError(
                f"the engine did not start: {failure.cause} ({line}).", failure.advice
            ) from error
        try:
            yield Address(running.url, running.served_model, best.model, choice.installation is None, time_scale)
        finally:
            remark("Stopping the engine.")
            runner.run(_stopped(running.stop()))


async def _stopped(stopping: object) -> None:
    await stopping  # type: ignore[misc]


def _engine(choice: Choice, time_scale: float) -> Engine:
    if choice.installation is None:
        assert choice.gpu is not None
        return SimulatedEngine(choice.gpu, clock=WallClock(time_scale), study="chat")
    device = matching_device(choice.gpu) if choice.gpu is not None and choice.gpu.kind == "cuda" else None
    return VllmEngine(choice.installation, device.uuid if device is not None else None, study="chat")


def chat_in_browser(address: Address, host: str, port: int, max_tokens: int) -> None:
    """A Chainlit page until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="autotune-chainlit-") as folder:
        application = Path(__file__).with_name("_chat_app.py")
        command = [sys.executable, "-m", "chainlit", "run", str(application)]
        command += ["--headless", "--host", host, "--port", str(port)]
        environment = {
            **os.environ,
            URL: address.url,
            MODEL: address.model,
            MAX_TOKENS: str(max_tokens),
            "CHAINLIT_APP_ROOT": folder,
        }
        remark(f"Chat: http://{host}:{port} (Ctrl-C ends it).{_mark(address)}")
        page = subprocess.Popen(command, env=environment, cwd=folder)
        try:
            page.wait()
        except KeyboardInterrupt:
            remark("Ended.")
        finally:
            _end(page)
        if page.returncode and page.returncode > 0:
            raise EnvironmentProblemError(
                f"the chat page ended with exit code {page.returncode}.", "See its messages above."
            )


def _end(page: subprocess.Popen[bytes]) -> None:
    if page.poll() is None:
        page.terminate()
    try:
        page.wait(10)
    except subprocess.TimeoutExpired:
        page.kill()
        page.wait()


def chat_in_terminal(address: Address, max_tokens: int) -> None:
    """Questions from stdin, answers to stdout, until the end of the input or 'exit'."""
    remark(f"Chatting with {address.title}; end with Ctrl-D or 'exit'.{_mark(address)}")
    messages: list[Message] = []
    with httpx.Client(timeout=_TIMEOUT, headers=_headers(), trust_env=False) as client:
        for question in _questions():
            messages.append({"role": "user", "content": question})
            answer = _answer(client, address, messages, max_tokens)
            if answer:
                messages.append({"role": "assistant", "content": answer})
            else:
                messages.pop()


def _questions() -> Iterator[str]:
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input("> ") if interactive else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            return
        if not interactive and not line:
            return
        question = line.strip()
        if question.casefold() in _END_WORDS:
            return
        if question:
            yield question


def _answer(client: httpx.Client, address: Address, messages: Iterable[Message], max_tokens: int) -> str:
    """Print an answer as it arrives, with what it took; returns its text, empty after a failure."""
    body = {
        "model": address.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    clock = WallClock(address.time_scale)
    began = clock.now()
    first: float | None = None
    tokens: int | None = None
    text = ""
    try:
        with client.stream("POST", f"{address.url}/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                remark(describe_error(response.status_code, response.read()), style="red")
                return ""
            for line in response.iter_lines():
                piece = piece_of(line)
                tokens = piece.output_tokens if piece.output_tokens is not None else tokens
                if piece.error:
                    remark(f"The engine failed: {piece.error}", style="red")
                    return ""
                if piece.text:
                    first = first if first is not None else clock.now()
                    sys.stdout.write(piece.text)
                    sys.stdout.flush()
                text += piece.answer
    except httpx.HTTPError as error:
        remark(f"The engine does not answer ({type(error).__name__}).", style="red")
        return ""
    except KeyboardInterrupt:
        remark("\nCut off.")
        return text
    sys.stdout.write("\n")
    sys.stdout.flush()
    if first is not None:
        _tell_speed(clock.now() - began, first - began, tokens, address)
    return text


def _tell_speed(total: float, ttft: float, tokens: int | None, address: Address) -> None:
    parts = [f"first token after {ttft:.2f} s", f"whole after {total:.2f} s"]
    if tokens and total > ttft:
        parts.append(f"{tokens} tokens, {(tokens - 1) / (total - ttft):.1f} tok/s")
    remark(f"({'; '.join(parts)}{'; SIMULATED' if address.simulated else ''})", style="dim")


def _headers() -> dict[str, str]:
    key = os.environ.get(API_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _mark(address: Address) -> str:
    return " SIMULATED: its answers have no meaning." if address.simulated else ""
