"""Validating a YAML file of ours, and saying on which line it is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.base.errors import UsageError
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog import DEFAULT_WORKLOAD, load_gpu, load_model, load_workload
from autotune.cli.definition import StudyOptions, build_spec
from autotune.space import build_space

_STUDY_KEYS = frozenset({"slo", "workload", "workloads", "model", "load", "budget"})
_GPU_KEYS = frozenset({"memory_gib", "compute_capability"})
_SPACE_GPU = "t4"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a valid file is, and what it holds in a phrase."""

    kind: str
    summary: str


def check_file(path: Path, *, gpu: str | None, model: str) -> Checked:
    """Validate a study definition, a search space or a GPU file.

    Raises:
        UsageError: it is wrong; the message begins with file and line.
    """
    try:
        document = read_yaml_mapping(path)
        if _GPU_KEYS & document.keys():
            found = load_gpu(str(path))
            return Checked("GPU", f"{found.title}, {found.memory_gib:g} GiB")
        if _STUDY_KEYS & document.keys():
            return _check_study(path, gpu)
        space = build_space(
            load_gpu(gpu or _SPACE_GPU),
            load_model(model),
            load_workload(DEFAULT_WORKLOAD),
            overrides=document,
            allow_lossy=True,
        )
        return Checked("search space", f"{', '.join(p.name for p in space.parameters)} vary on {gpu or _SPACE_GPU}")
    except UsageError as error:
        raise _with_line(error, path) from error


def _check_study(path: Path, gpu: str | None) -> Checked:
    spec = build_spec(StudyOptions(study=path, gpu=gpu))
    found = load_gpu(_SPACE_GPU if spec.gpu == "auto" else spec.gpu)
    space = build_space(
        found,
        load_model(spec.model),
        spec.longest_workload,
        overrides=spec.space,
        fixed=spec.arguments,
        allow_lossy=spec.allow_lossy,
    )
    broken = space.check(spec.arguments)
    if broken:
        raise UsageError(f"arguments: {broken[0]}")
    return Checked(
        "study definition", f"{spec.gpu}, {spec.model}, {spec.slo}, {len(space.parameters)} engine arguments vary"
    )


def _with_line(error: UsageError, path: Path) -> UsageError:
    """The error with file and line in front, where the line can be told from what the message names."""
    message = re.sub(rf"^(?:study file )?{re.escape(str(path))}:\s*", "", error.message)
    line = None if message.startswith("not valid YAML: line ") else line_of(path, message)
    place = f"{path}, line {line}" if line is not None else str(path)
    return UsageError(f"{place}: {message}", error.remedy)


def line_of(path: Path, message: str) -> int | None:
    """The line of the key or value that a message names; None when it names nothing in the file.

    Dotted names (``workload.input_tokens``) and nested keys in front of a colon count most, then quoted words, then
    plain keys.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    if root is None:
        return None
    quoted = set(re.findall(r"'([^']+)'", message))
    lead = re.match(r"(?:[\w.-]+: )*", message)
    leading = set(lead.group().replace(":", "").split()) if lead is not None else set()
    plain = set(re.findall(r"[\w.-]+", message))
    best: tuple[int, int] | None = None
    for keys, value, line in _entries(root):
        dotted = ".".join(keys)
        score = 0
        if len(keys) > 1 and (dotted in plain or keys[-1] in leading):
            score = 4
        elif _folded(keys[-1]) in {_folded(word) for word in quoted} or value in quoted:
            score = 3
        elif keys[-1] in plain or keys[-1].replace("_", "-") in plain:
            score = 1 if len(keys) == 1 else 2
        if score and (best is None or score > best[0]):
            best = (score, line)
    return None if best is None else best[1]


def _folded(name: str) -> str:
    return name.replace("_", "-")


def _entries(node: yaml.Node, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | None, int]]:
    """Every key of nested mappings with its path, its plain value if it has one, and its line."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*keys, str(key.value))
        yield path, value.value if isinstance(value, yaml.ScalarNode) else None, key.start_mark.line + 1
        yield from _entries(value, path)
