"""Names of engine arguments and their translation to flags."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache

from autotune.base.errors import UsageError
from autotune.base.suggest import nearest
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog import data_folder


def normalise(name: str) -> str:
    """The name of an argument as the flag spells it, without dashes in front: ``max_num_seqs`` is ``max-num-seqs``."""
    return name.strip().lstrip("-").replace("_", "-")


def to_argv(arguments: Mapping[str, object]) -> list[str]:
    """Arguments as ``vllm serve`` takes them, in the given order.

    True is ``--flag``, False ``--no-flag``, a mapping its JSON, a list its values one after the other.

    Raises:
        UsageError: a value is None; unset is expressed by leaving the argument out.
    """
    argv: list[str] = []
    for name, value in arguments.items():
        flag = normalise(name)
        if value is None:
            raise UsageError(f"{flag}: no value is given.", "Leave the argument out to use vLLM's default.")
        if value is True:
            argv.append(f"--{flag}")
        elif value is False:
            argv.append(f"--no-{flag}")
        elif isinstance(value, Mapping):
            argv += [f"--{flag}", json.dumps(value, separators=(",", ":"))]
        elif isinstance(value, (list, tuple)):
            argv += [f"--{flag}", *(str(item) for item in value)]
        else:
            argv += [f"--{flag}", str(value)]
    return argv


@lru_cache(maxsize=1)
def _old_arguments() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for name, entry in read_yaml_mapping(data_folder() / "arguments.yaml").items():
        if not isinstance(entry, dict) or "advice" not in entry or not entry.keys() <= {"advice", "instead"}:
            raise UsageError(f"arguments.yaml: {name} needs 'advice' and at most 'instead' beside it.", "Correct it.")
        table[name] = {key: str(value) for key, value in entry.items()}
    return table


def explain_argument(name: str, known: Collection[str]) -> str | None:
    """Why the installed vLLM would refuse ``name`` and what to write instead; None where it knows the argument.

    Args:
        name: as a user wrote it, e.g. ``--swap_space``, ``enable-chunked-prefill True``, ``swap-space=4``.
        known: the arguments that the installed vLLM knows, as it spells them.
    """
    words = name.replace("=", " ").split()
    plain = normalise(words[0]) if words else ""
    value = " ".join(words[1:])
    spelt = {normalise(argument) for argument in known}
    if not plain:
        return "An argument without a name."
    positive = plain.removeprefix("no-")
    if plain in spelt or (positive != plain and positive in spelt):
        if value.casefold() in ("true", "false"):
            truth = value.casefold() == "true"
            form = f"--{plain}" if truth else f"--no-{positive}"
            return f"{plain} is a switch and takes no word after it: write {form}, or '{plain}: {str(truth).lower()}'."
        return None
    old = _old_arguments().get(plain) or _old_arguments().get(positive)
    if old is not None:
        return f"{plain} is not an argument of this vLLM: {old['advice']}"
    close = nearest(plain, sorted(spelt))
    if close:
        return f"{plain} is not an argument of this vLLM. Did you mean {' or '.join(close)}?"
    return f"{plain} is not an argument of this vLLM; 'vllm serve --help=all' lists them."
