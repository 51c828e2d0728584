"""Formats without much structure: a shell script, an environment file, JSON."""

from __future__ import annotations

import json
import shlex

from autotune.base.errors import UsageError
from autotune.export.configuration import Configuration
from autotune.export.format import ExportOptions
from autotune.export.provenance import comment_block
from autotune.space import to_argv


class ShellFormat:
    """A script that becomes ``vllm serve`` with the flags; further flags may be given to it."""

    name = "shell"
    summary = "a script that runs 'vllm serve' with the flags"
    file_name = "serve.sh"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The script's text."""
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in configuration.environment.items())
        words = ["exec vllm serve", shlex.quote(configuration.model), *flag_groups(configuration), '"$@"']
        return (
            "#!/usr/bin/env bash\n"
            + comment_block(configuration, "Start it with: bash serve.sh")
            + "set -euo pipefail\n"
            + exports
            + " ".join(words[:2])
            + "".join(f" \\\n  {word}" for word in words[2:])
            + "\n"
        )


def flag_groups(configuration: Configuration) -> list[str]:
    """One quoted word group per argument, e.g. ``--max-num-seqs 64``."""
    return [
        " ".join(shlex.quote(word) for word in to_argv({name: value}))
        for name, value in configuration.arguments.items()
    ]


def command_line(configuration: Configuration) -> str:
    """The ``vllm serve`` command in one line, with its environment variables before it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in configuration.environment.items()]
    return " ".join([*variables, "vllm serve", shlex.quote(configuration.model), *flag_groups(configuration)])


class EnvFormat:
    """``best.env``: environment variables, as ``docker --env-file`` and systemd read them (no quotes)."""

    name = "env"
    summary = "environment variables, one NAME=VALUE a line"
    file_name = "best.env"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The file's text; comments only when there are no variables."""
        for name, value in configuration.environment.items():
            if not name.isidentifier() or any(sign in value for sign in "\r\n\0"):
                raise UsageError(f"environment: {name!r} cannot be written as NAME=VALUE.", "Set it by hand.")
        first = "Environment variables of the engine, for best.yaml"
        if not configuration.environment:
            first += " (it needs none)"
        body = "".join(f"{name}={value}\n" for name, value in configuration.environment.items())
        return comment_block(configuration, first) + body


class JsonFormat:
    """Everything as one JSON document."""

    name = "json"
    summary = "JSON: model, arguments, command, environment, provenance"
    file_name = "best.json"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The document's text."""
        document = {
            "schema_version": 1,
            "simulated": configuration.provenance.simulated,
            "model": configuration.model,
            "arguments": dict(configuration.arguments),
            "environment": dict(configuration.environment),
            "command": ["vllm", "serve", configuration.model, *to_argv(configuration.arguments)],
            "withheld": list(configuration.withheld),
            "provenance": configuration.provenance.model_dump(mode="json"),
        }
        if configuration.provenance.simulated:
            document["notice"] = "SIMULATED: these figures come from the simulated engine, not from a GPU."
        return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
