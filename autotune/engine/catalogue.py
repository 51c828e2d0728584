"""Which arguments the installed vLLM takes: asked of itself once, kept by version, never from a frozen table."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import EnvironmentProblemError
from autotune.base.files import write_json
from autotune.engine._marker import without_marker
from autotune.engine.inside import vllm_arguments
from autotune.engine.installation import VllmInstallation
from autotune.space import explain_argument, normalise
from autotune.spec import Arguments, ArgumentValue

_ASK_TIMEOUT_S = 300.0
_SCHEMA = 2
_HELP_OPTION = re.compile(r"^  (-\S.*?)(?:  .*)?$", re.MULTILINE)
_SUFFIXED = re.compile(r"[+-]?\d+(?:\.\d+)?[kKmMgGtT]?")


@dataclass(frozen=True, slots=True)
class ArgumentFact:
    """One argument. ``kind`` is ``switch``, ``int``, ``float``, ``text`` or ``unknown``."""

    name: str
    kind: str
    choices: tuple[str, ...] | None
    default: ArgumentValue | None
    negative: bool
    """Whether ``--no-NAME`` exists."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArgumentCatalogue:
    """The arguments of one installation."""

    facts: Mapping[str, ArgumentFact]

    @property
    def names(self) -> frozenset[str]:
        """All spellings that are taken."""
        return frozenset(self.facts) | {alias for fact in self.facts.values() for alias in fact.aliases}

    def find(self, name: str) -> ArgumentFact | None:
        """The fact on an argument by any of its spellings."""
        plain = normalise(name)
        if plain in self.facts:
            return self.facts[plain]
        return next((fact for fact in self.facts.values() if plain in fact.aliases), None)

    def check(self, arguments: Arguments) -> list[str]:
        """Reasons why vLLM's parser would refuse the arguments, with the nearest known names."""
        return [reason for name, value in arguments.items() if (reason := self._refusal(name, value)) is not None]

    def _refusal(self, name: str, value: ArgumentValue) -> str | None:
        plain = normalise(name)
        root = plain.split(".")[0]
        fact = self.find(root)
        if fact is None:
            return explain_argument(name, self.names)
        if root != plain:
            return None
        if fact.kind == "switch":
            return _switch_refusal(fact, value)
        if isinstance(value, bool):
            return f"{plain} needs a value and is no switch." if fact.kind != "unknown" else None
        if fact.choices is not None and str(value) not in fact.choices:
            return f"{plain} cannot be {value}: this vLLM takes {', '.join(fact.choices)}."
        if fact.kind == "int" and not isinstance(value, int) and not _SUFFIXED.fullmatch(str(value)):
            return f"{plain} cannot be {value}: it takes a whole number."
        if fact.kind == "float" and isinstance(value, str) and not _is_number(value):
            return f"{plain} cannot be {value}: it takes a number."
        return None


def _switch_refusal(fact: ArgumentFact, value: ArgumentValue) -> str | None:
    if not isinstance(value, bool):
        return f"{fact.name} is a switch: write {fact.name}: true or {fact.name}: false, not {value}."
    if value is False and not fact.negative:
        return f"{fact.name} is a switch that can only be on: leave it out to have it off."
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def load_catalogue(installation: VllmInstallation, cache_folder: Path | None = None) -> ArgumentCatalogue:
    """Ask an installation for its arguments, or read what it answered before.

    Raises:
        EnvironmentProblemError: it does not answer.
    """
    folder = cache_folder or _user_cache()
    path = folder / f"arguments-{_key(installation)}.json"
    kept = _read(path)
    if kept is None:
        kept = _ask(installation)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, kept)
        except OSError:
            pass  # The cache only saves time.
    return catalogue_from(kept["arguments"])


def catalogue_from(described: Mapping[str, Mapping[str, Any]]) -> ArgumentCatalogue:
    """The catalogue of arguments described as ``vllm_arguments.describe`` does."""
    return ArgumentCatalogue({name: _fact(name, entry) for name, entry in described.items()})


def _fact(name: str, entry: Mapping[str, Any]) -> ArgumentFact:
    choices = entry["choices"]
    return ArgumentFact(
        name=name,
        kind=str(entry["kind"]),
        choices=None if choices is None else tuple(choices),
        default=entry["default"],
        negative=bool(entry["negative"]),
        aliases=tuple(entry["aliases"]),
    )


def _key(installation: VllmInstallation) -> str:
    where = installation.folder or Path(installation.command[0])
    try:
        changed = where.stat().st_mtime_ns
    except OSError:
        changed = 0
    text = json.dumps([_SCHEMA, installation.command, installation.version, str(where), changed])
    return f"{installation.version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-autotune"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("arguments") else None


def _ask(installation: VllmInstallation) -> dict[str, Any]:
    if installation.python is not None:
        answer = _run([installation.python, str(Path(vllm_arguments.__file__))])
        if answer.returncode == 0:
            try:
                document = json.loads(answer.stdout)
            except ValueError:
                document = None
            if isinstance(document, dict) and document.get("arguments"):
                return document
    serve = ["serve"] if installation.style == "serve" else []
    # Versions before 0.9 know only --help, which lists everything.
    for flag in ("--help=all", "--help"):
        answer = _run([*installation.command, *serve, flag])
        found = parse_help(answer.stdout) if answer.returncode == 0 else {}
        if len(found) > 20:
            return {"arguments": found}
    last = (answer.stderr.strip().splitlines() or ["no output"])[-1][:200]
    raise EnvironmentProblemError(
        f"vLLM {installation.version}: it does not tell its arguments ({last}).",
        "Run 'vllm serve --help=all' by hand: the installation may be broken.",
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
            env=without_marker(os.environ) | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def parse_help(text: str) -> dict[str, dict[str, Any]]:
    """Arguments in the text of ``vllm serve --help=all``: names, choices and switches, as far as it shows them."""
    found: dict[str, dict[str, Any]] = {}
    for match in _HELP_OPTION.finditer(text):
        shown = match.group(1)
        flags = [flag[2:] for flag in re.findall(r"--[A-Za-z][\w-]*", shown)]
        positive = [flag for flag in flags if not flag.startswith("no-")] or flags
        if not positive or positive[0] == "help":
            continue
        choices = re.search(r"\{([^}]*)\}", shown)
        metavar = re.search(r" ([A-Z][A-Z0-9_]+)", shown)
        switch = choices is None and metavar is None
        found[positive[0].replace("_", "-")] = {
            "aliases": sorted({flag.replace("_", "-") for flag in positive[1:]}),
            "negative": len(flags) > len(positive),
            "kind": "switch" if switch else "unknown",
            "choices": choices.group(1).split(",") if choices is not None else None,
            "default": None,
            "many": False,
        }
    return found
