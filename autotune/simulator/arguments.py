"""The command line of the simulated engine: the flags of ``vllm serve`` and a few of its own.

Parsed with argparse as vLLM does, so that a wrong flag fails in the same words and with the same exit code.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml

from autotune.simulator.formats import DTYPE_CHOICES, KV_DTYPE_CHOICES
from autotune.spec import Arguments

_SUFFIXES = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_HUMAN_INT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")

LOAD_FORMATS = (
    "auto", "hf", "safetensors", "dummy", "fastsafetensors", "instanttensor", "runai_streamer", "tensorizer",
    "sharded_state", "pt", "npcache", "mistral",
)  # fmt: skip

_INERT_FLAGS = (
    "uvicorn-log-level", "tokenizer", "tokenizer-mode", "revision", "tokenizer-revision", "download-dir",
    "hf-overrides", "config-format", "model-impl", "generation-config", "override-generation-config",
    "chat-template", "chat-template-content-format", "reasoning-parser", "tool-call-parser", "max-logprobs",
    "distributed-executor-backend", "root-path", "allowed-origins", "response-role", "limit-mm-per-prompt",
    "prefix-caching-hash-algo", "collect-detailed-traces", "otlp-traces-endpoint", "ssl-keyfile", "ssl-certfile",
    "attention-config", "kernel-config", "speculative-config", "kv-transfer-config", "runner", "convert",
    "max-log-len", "mm-processor-cache-gb", "custom-histogram-buckets",
)  # fmt: skip
_INERT_SWITCHES = (
    "trust-remote-code", "enable-auto-tool-choice", "enable-sleep-mode", "disable-uvicorn-access-log",
    "enable-server-load-tracking", "enable-prompt-tokens-details", "enable-request-id-headers",
    "disable-fastapi-docs", "enable-force-include-usage", "enable-per-request-metrics", "aggregate-engine-logging",
    "kv-cache-metrics", "disable-custom-all-reduce", "skip-tokenizer-init", "disable-cascade-attn",
)  # fmt: skip


class CommandLineError(Exception):
    """A command line that argparse refuses: ``str(error)`` is what follows ``error:``. Exit code 2."""


def human_int(text: str) -> int:
    """An integer with an optional suffix: ``2k`` is 2000, ``2K`` is 2048, as vLLM reads them."""
    match = _HUMAN_INT.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if suffix.isupper() and "." in number:
        raise argparse.ArgumentTypeError("Decimals are not allowed with binary suffixes like K.")
    return int(float(number) * _SUFFIXES[suffix])


def _model_length(text: str) -> int:
    return -1 if text.strip() in {"auto", "-1"} else human_int(text)


def _port(text: str) -> int:
    port = int(text)
    if not 1024 <= port <= 65535:
        raise argparse.ArgumentTypeError("Port must be between 1024 and 65535")
    return port


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} is not a JSON object.")
    return value


class _Parser(argparse.ArgumentParser):
    """Reports errors as exceptions; the caller prints usage and exits with 2."""

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message)


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    """The parser of ``serve``."""
    parser = _Parser(prog="vllm serve", usage="vllm serve [model_tag] [options]", add_help=False)
    add = parser.add_argument

    def switch(name: str, default: bool | None = None) -> None:
        add(f"--{name}", action=argparse.BooleanOptionalAction, default=default)

    add("model_tag", nargs="?", default=None)
    add("--model", default=None)
    add("--served-model-name", nargs="+", default=None)
    add("--host", default=None)
    add("--port", type=_port, default=8000)
    add("--uds", default=None)
    add("--api-key", nargs="+", default=None)
    add("--config", default=None)
    add("--seed", type=int, default=0)
    add("--dtype", choices=DTYPE_CHOICES, default="auto")
    add("--quantization", "-q", default=None)
    add("--load-format", choices=LOAD_FORMATS, default="auto")
    add("--max-model-len", type=_model_length, default=None)
    add("--max-num-seqs", type=human_int, default=None)
    add("--max-num-batched-tokens", type=human_int, default=None)
    add("--max-num-active-seqs", type=human_int, default=None)
    add("--max-num-scheduled-tokens", type=human_int, default=None)
    add("--max-num-queued-reqs", type=human_int, default=None)
    add("--max-num-queued-tokens", type=human_int, default=None)
    add("--gpu-memory-utilization", "--device-memory-utilization", type=float, default=0.92)
    add("--kv-cache-memory-bytes", type=human_int, default=None)
    add("--num-gpu-blocks-override", type=int, default=None)
    add("--block-size", type=int, default=None)
    switch("enable-chunked-prefill")
    add("--disable-chunked-prefill", dest="enable_chunked_prefill", action="store_false", default=None)
    add("--long-prefill-token-threshold", type=human_int, default=0)
    add("--prefill-schedule-interval", type=int, default=1)
    add("--watermark", type=float, default=0.0)
    switch("scheduler-reserve-full-isl", default=True)
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    switch("async-scheduling")
    add("--stream-interval", type=int, default=1)
    switch("enable-prefix-caching")
    add("--kv-cache-dtype", choices=KV_DTYPE_CHOICES, default="auto")
    switch("enforce-eager", default=False)
    add("--optimization-level", "-O", type=int, choices=(0, 1, 2, 3), default=2)
    add("--compilation-config", "-cc", type=_json_object, default=None)
    add("--cudagraph-capture-sizes", type=int, nargs="+", default=None)
    add("--max-cudagraph-capture-size", type=int, default=None)
    add("--performance-mode", choices=("balanced", "interactivity", "throughput"), default="balanced")
    add("--attention-backend", default=None)
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--pipeline-parallel-size", "-pp", type=int, default=1)
    add("--data-parallel-size", "-dp", type=int, default=1)
    add("--api-server-count", "-asc", type=int, default=1)
    add("--cpu-offload-gb", type=float, default=0.0)
    add("--kv-offloading-size", type=float, default=None)
    add("--kv-offloading-backend", choices=("native", "lmcache"), default=None)
    add("--shutdown-timeout", type=int, default=0)
    switch("enable-log-requests", default=False)
    add("--disable-log-stats", action="store_true")
    for name in _INERT_FLAGS:
        add(f"--{name}", default=None)
    for name in _INERT_SWITCHES:
        switch(name)

    simulation = parser.add_argument_group("Simulation")
    simulation.add_argument("--sim-gpu", default=None, help="name of the GPU in the catalogue")
    simulation.add_argument("--sim-gpu-count", type=int, default=1, help="GPUs of the simulated host")
    simulation.add_argument("--time-scale", type=float, default=1.0, help="engine seconds per wall second")
    simulation.add_argument("--sim-seed", type=int, default=0, help="seed of all noise")
    simulation.add_argument("--sim-noise", type=float, default=1.0, help="factor on the noise of step times")
    simulation.add_argument("--sim-memory-perturbation", default="", help="e.g. weights=1.02,activation=1.1,graphs=0.9")
    simulation.add_argument("--sim-fault", action="append", default=[], help="e.g. die-after=10 (requests)")
    simulation.add_argument("--sim-child", action="store_true", help="hold GPU memory in a child process")
    simulation.add_argument("--sim-merge-ms", type=float, default=4.0, help="wall time over which tokens are merged")
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse what follows ``serve``.

    Raises:
        CommandLineError: with argparse's message; the real engine exits with 2.
    """
    words = [_dashed(word) for word in _with_config_file(list(argv))]
    namespace, unknown = build_parser().parse_known_args(words)
    if unknown:
        raise CommandLineError(f"unrecognized arguments: {' '.join(unknown)}")
    if namespace.model_tag is None and namespace.model is None:
        raise CommandLineError(
            "No model specified! Please specify model either as a positional argument or in a config file."
        )
    namespace.model = namespace.model_tag or namespace.model
    return namespace


def known_flags() -> frozenset[str]:
    """Names of all engine arguments this engine takes, without dashes, its own ``sim-`` flags left out."""
    names: set[str] = set()
    for action in build_parser()._actions:
        names.update(option[2:] for option in action.option_strings if option.startswith("--"))
    return frozenset(name for name in names if not name.startswith("sim-") and name != "time-scale")


def to_words(arguments: Arguments) -> list[str]:
    """The words of the command line for engine arguments (``True`` is the bare flag, ``False`` its ``no-`` form)."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        else:
            words.append(f"--{name}={value}")
    return words


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _with_config_file(argv: list[str]) -> list[str]:
    """Insert the words of ``--config FILE`` before the others, so that the command line wins over the file."""
    if argv.count("--config") > 1:
        raise CommandLineError("More than one config file specified!")
    if "--config" not in argv:
        return argv
    at = argv.index("--config")
    if at + 1 >= len(argv):
        raise CommandLineError("No config file specified! Please check your command-line arguments.")
    path = argv[at + 1]
    rest = argv[:at] + argv[at + 2 :]
    if Path(path).suffix not in {".yaml", ".yml"}:
        raise CommandLineError(f"Config file must be of a yaml/yml type. {path} supplied")
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise CommandLineError(f"Unable to read the config file at {path}. {error}") from error
    return _position_first(_config_words(loaded), rest)


def _config_words(loaded: dict[str, object]) -> list[str]:
    known = set(build_parser()._option_string_actions)
    words: list[str] = []
    for key, value in loaded.items():
        flag = f"--{key}"
        if value is True:
            words.append(flag)
        elif value is False:
            if f"--no-{key}" in known:
                words.append(f"--no-{key}")
        elif isinstance(value, list):
            if value:
                words += [flag, *map(str, value)]
        elif isinstance(value, dict):
            words += [flag, json.dumps(value)]
        else:
            words += [flag, str(value)]
    return words


def _position_first(file_words: list[str], rest: list[str]) -> list[str]:
    """Keep a leading model name in front: a list-valued option of the file would otherwise swallow it."""
    if rest and not rest[0].startswith("-"):
        return [rest[0], *file_words, *rest[1:]]
    return file_words + rest
