"""Which vLLM is here: found on PATH, by a command, or as a module of a Python; never imported by us."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.engine._marker import without_marker
from autotune.engine.inside import vllm_location

_ASK_TIMEOUT_S = 180.0
_INTERPRETER = re.compile(r"python[\d.]*(?:\.exe)?")
_VERSION = re.compile(r"(?:vllm )?v?(?P<version>\d+\.\d+\.\d+\S*)", re.IGNORECASE)
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_INSTALL = "Install it (pip install vllm), or name it with --vllm-command, e.g. '/path/to/env/bin/vllm'."


class CommandStyle(StrEnum):
    """How the command wants its model."""

    SERVE = "serve"
    """``vllm serve MODEL ...``"""
    MODULE = "module"
    """``python -m vllm.entrypoints.openai.api_server --model MODEL ...``"""


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """An installed vLLM. ``command`` is an argument vector without ``serve``."""

    command: tuple[str, ...]
    version: str
    style: CommandStyle
    python: str | None = None
    """The Python it runs in, where known."""
    folder: Path | None = None
    """Where the package lies, where known."""
    on_cpu: bool = False
    """Whether it is a build for CPUs."""

    def launch_command(self, model: str, arguments: Sequence[str]) -> list[str]:
        """The argument vector that serves a model."""
        if self.style is CommandStyle.SERVE:
            return [*self.command, "serve", model, *arguments]
        return [*self.command, "--model", model, *arguments]


def detect_vllm(command: str | None = None) -> VllmInstallation:
    """Find vLLM.

    Args:
        command: ``vllm``, a path to it, ``python -m vllm.entrypoints.openai.api_server``, or only a Python that has it;
            None looks for ``vllm`` on PATH, then in this program's own environment.

    Raises:
        EnvironmentProblemError: there is none, or it does not say its version.
        UsageError: its command has an unclosed quotation.
    """
    if command is not None:
        return _from_command(command)
    script = shutil.which("vllm")
    if script is not None:
        return _from_script((script,))
    installation = _from_python(sys.executable)
    if installation is None:
        raise EnvironmentProblemError("vLLM: there is no 'vllm' on PATH.", _INSTALL)
    return installation


def _from_command(command: str) -> VllmInstallation:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--vllm-command '{command}': {error}.", "Quote it as a shell would.") from error
    if words and words[-1] == "serve":
        words.pop()
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise EnvironmentProblemError(f"--vllm-command '{command}': there is no such program.", _INSTALL)
    if not _INTERPRETER.fullmatch(Path(program).name):
        return _from_script((program, *words[1:]))
    found = _from_python(program)
    if found is None:
        raise EnvironmentProblemError(f"--vllm-command '{command}': this Python has no vLLM.", _INSTALL)
    if not words[1:]:
        return found
    style = CommandStyle.MODULE if words[1:2] == ["-m"] and "api_server" in words[2] else CommandStyle.SERVE
    return VllmInstallation((program, *words[1:]), found.version, style, program, found.folder, found.on_cpu)


def _from_script(words: tuple[str, ...]) -> VllmInstallation:
    python = _interpreter_of(Path(words[0]))
    known = _look(python) if python is not None else {}
    if known and python is not None:
        if not known["distribution"] and len(words) == 1:
            # Its own script asks for a distribution called vllm and dies; the module does not.
            beside = _from_python(python)
            if beside is not None:
                return beside
        folder, on_cpu = Path(str(known["folder"])), bool(known["cpu"])
        return VllmInstallation(words, str(known["version"]), CommandStyle.SERVE, python, folder, on_cpu)
    version = _ask_version(words)
    return VllmInstallation(words, version, CommandStyle.SERVE)


def _from_python(python: str) -> VllmInstallation | None:
    known = _look(python)
    if not known:
        return None
    folder = Path(str(known["folder"]))
    version = str(known["version"])
    on_cpu = bool(known["cpu"])
    if known["distribution"] or not known["server"]:
        module = ("-m", "vllm.entrypoints.cli.main")
        return VllmInstallation((python, *module), version, CommandStyle.SERVE, python, folder, on_cpu)
    return VllmInstallation((python, "-m", _SERVER_MODULE), version, CommandStyle.MODULE, python, folder, on_cpu)


def _look(python: str) -> dict[str, object]:
    """What that Python knows of its vLLM; empty when it has none or is none."""
    try:
        answer = subprocess.run(
            [python, str(Path(vllm_location.__file__))],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
            env=without_marker(os.environ),
            cwd=Path(python).parent,
        )
        found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _interpreter_of(script: Path) -> str | None:
    """The Python named in a script's first line, also where pip wrapped it for a long path."""
    try:
        head = script.read_bytes()[:512].decode("utf-8", "replace")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    first, *rest = head.splitlines()
    words = first[2:].split()
    if words and words[0].endswith("/env"):
        words = words[1:]
        return shutil.which(words[0]) if words else None
    if words and Path(words[0]).name == "sh" and rest:
        match = re.match(r"'''exec' ['\"]?([^'\" ]+)", rest[0])
        return match.group(1) if match else None
    return words[0] if words and _INTERPRETER.fullmatch(Path(words[0]).name) else None


def _ask_version(words: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(
            [*words, "--version"],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
            env=without_marker(os.environ),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblemError(f"vLLM: '{shlex.join(words)} --version' failed ({error}).", _INSTALL) from error
    said = [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []
    match = _VERSION.fullmatch(said[-1]) if said else None
    if match is None:
        last = (answer.stderr.strip().splitlines() or said or ["it printed nothing"])[-1]
        raise EnvironmentProblemError(
            f"vLLM: '{shlex.join(words)} --version' tells no version of vLLM ({last[:160]}).", _INSTALL
        )
    return match["version"]
