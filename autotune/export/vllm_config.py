"""``best.yaml``: what ``vllm serve --config`` takes as it is; and reading it back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.base.errors import UsageError
from autotune.export.configuration import Configuration, Provenance
from autotune.export.format import ExportOptions
from autotune.export.provenance import comment_block, find_provenance
from autotune.spec import ArgumentValue


class VllmConfigFormat:
    """Flat YAML with the flags' long names; vLLM drops ``false`` unless the key is dashed, and takes null for text."""

    name = "vllm"
    summary = "YAML for 'vllm serve --config'"
    file_name = "best.yaml"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The file's text."""
        first = "Start it with: vllm serve --config best.yaml"
        if configuration.environment:
            first += " (set the variables of best.env before)"
        document = {"model": configuration.model, **configuration.arguments}
        body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
        return comment_block(configuration, first) + body


@dataclass(frozen=True, slots=True)
class BestFile:
    """A ``best.yaml`` as it was read."""

    path: Path
    model: str
    arguments: dict[str, ArgumentValue]
    environment: dict[str, str]
    """From the ``.env`` file of the same name, empty without one."""
    provenance: Provenance | None
    """None when the file was not written by this program, or its comments were removed."""


def read_best(path: Path) -> BestFile:
    """Read a ``best.yaml`` and the ``best.env`` beside it.

    Raises:
        UsageError: it cannot be read, or is not a flat configuration with a model.
    """
    try:
        text = path.read_text()
        document = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"{path}: {reason or error}.", "Name a best.yaml that a search left.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not valid YAML.", "Export it again: autotune export STUDY.") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), str):
        raise UsageError(f"{path}: no 'model:' in it.", "Name a best.yaml that a search left.")
    arguments = {str(key): value for key, value in document.items() if key != "model"}
    for key, value in arguments.items():
        if not isinstance(value, (bool, int, float, str)):
            raise UsageError(f"{path}: '{key}' is not a plain value.", "Write objects as JSON text in quotes.")
    return BestFile(
        path=path,
        model=document["model"],
        arguments=arguments,
        environment=_read_environment(path.with_suffix(".env")),
        provenance=find_provenance(text),
    )


def _read_environment(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    variables = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{path}, line {number}: not NAME=VALUE.", "Mend the line, or remove it.")
        variables[name] = value
    return variables
