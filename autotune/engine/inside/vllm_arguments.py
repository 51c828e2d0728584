"""Prints, as JSON, which arguments the installed vLLM takes. Run by that vLLM's own Python; standard library only."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys

_PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_ARGPARSE_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


def _first_attribute(modules: tuple[str, ...], name: str) -> object:
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise SystemExit(f"this vLLM has no {name}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``vllm serve``, wherever this version keeps it."""
    make = _first_attribute(_PARSER_MODULES, "make_arg_parser")
    flexible = _first_attribute(_ARGPARSE_MODULES, "FlexibleArgumentParser")
    return make(flexible(prog="vllm serve"))  # type: ignore[operator, no-any-return]


def describe(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Arguments by name: other spellings, kind, choices and default."""
    found: dict[str, dict[str, object]] = {}
    for action in parser._actions:
        flags = [f[2:] for f in action.option_strings if f.startswith("--")]
        if not flags or isinstance(action, argparse._HelpAction):
            continue
        names = [f.replace("_", "-") for f in flags if not f.startswith("no-")] or flags
        default = action.default
        if not isinstance(default, (bool, int, float, str)):
            default = None
        choices = action.choices
        found[names[0]] = {
            "aliases": sorted(set(names[1:])),
            "negative": any(f.startswith("no-") for f in flags),
            "kind": _kind(action),
            "choices": None if choices is None else [str(c) for c in choices],
            "default": default,
            "many": action.nargs in ("+", "*"),
        }
    return found


def _kind(action: argparse.Action) -> str:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    name = getattr(action.type, "__name__", "") or "str"
    return {"int": "int", "float": "float", "human_readable_int": "int"}.get(name, "text")


def main() -> None:
    """Keep stdout clean of what imports print, then write the document to it."""
    with contextlib.redirect_stdout(sys.stderr):
        arguments = describe(build_parser())
    json.dump({"arguments": arguments}, sys.stdout)


if __name__ == "__main__":
    main()
