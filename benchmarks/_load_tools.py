"""Whole tools on the same server and load: what each takes of the CPU and how far its P99 is off.

A tool runs as its users run it, from its own environment; its CPU is that of all its processes, imports
included, and again with the imports taken off (a run of very few requests is the measure of those).
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from _load_golden import Golden, order_statistic


@dataclass(frozen=True)
class Load:
    """An open loop of Poisson arrivals."""

    rate: float
    requests: int
    input_tokens: int
    output_tokens: int


class Tool(Protocol):
    """A load generator that is run as a command."""

    name: str

    def command(self, url: str, load: Load, folder: Path) -> list[str]:
        """Its command line."""
        ...

    def p99(self, folder: Path, stdout: str) -> dict[str, float]:
        """The P99 that it reports, in seconds, by ``ttft``, ``tpot`` and ``e2e``."""
        ...


class Autotune:
    """``autotune bench`` of this checkout."""

    name = "autotune bench"

    def command(self, url: str, load: Load, folder: Path) -> list[str]:
        return [
            sys.executable, "-m", "autotune.cli.main", "bench", "--url", url, "--rate", str(load.rate),
            "--requests", str(load.requests), "--input-tokens", str(load.input_tokens), "--output-tokens",
            str(load.output_tokens), "--warm-up", "0", "--json",
        ]  # fmt: skip

    def p99(self, folder: Path, stdout: str) -> dict[str, float]:
        level = json.loads(stdout)["levels"][0]
        return {"ttft": level["p99_ttft_s"], "tpot": level["p99_tpot_s"], "e2e": level["p99_latency_s"]}


@dataclass(frozen=True)
class VllmBench:
    """``vllm bench serve``."""

    program: str
    tokenizer: Path
    name: str = "vllm bench serve"

    def command(self, url: str, load: Load, folder: Path) -> list[str]:
        return [
            *shlex.split(self.program), "bench", "serve", "--base-url", url, "--model", "golden", "--tokenizer",
            str(self.tokenizer), "--dataset-name", "random", "--random-input-len", str(load.input_tokens),
            "--random-output-len", str(load.output_tokens), "--random-range-ratio", "0", "--request-rate",
            str(load.rate), "--num-prompts", str(load.requests), "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--metric-percentiles", "99", "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir",
            str(folder), "--result-filename", "result.json",
        ]  # fmt: skip

    def p99(self, folder: Path, stdout: str) -> dict[str, float]:
        result = json.loads((folder / "result.json").read_text())
        return {k: result[f"p99_{n}_ms"] / 1000 for k, n in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el"))}


@dataclass(frozen=True)
class GuideLlm:
    """GuideLLM."""

    program: str
    tokenizer: Path
    name: str = "GuideLLM"

    def command(self, url: str, load: Load, folder: Path) -> list[str]:
        return [
            *shlex.split(self.program), "run", "--backend",
            f"kind=openai_http,target={url},model=golden,request_format=/v1/completions", "--profile",
            f"kind=poisson,rate={load.rate}", "--constraint", f"kind=max_requests,count={load.requests}", "--tokenizer",
            f"kind=huggingface_auto,model={self.tokenizer}", "--data",
            f"kind=synthetic_text,prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}", "--output",
            f"kind=json,path={folder / 'result.json'}", "--disable-console",
        ]  # fmt: skip

    def p99(self, folder: Path, stdout: str) -> dict[str, float]:
        (benchmark,) = json.loads((folder / "result.json").read_text())["benchmarks"]
        metrics: dict[str, Any] = benchmark["metrics"]
        names = (
            ("ttft", "time_to_first_token_ms", 1e-3),
            ("tpot", "inter_token_latency_ms", 1e-3),
            ("e2e", "request_latency", 1.0),
        )
        return {key: metrics[name]["successful"]["percentiles"]["p99"] * unit for key, name, unit in names}


def run_tool(tool: Tool, golden: Golden, load: Load, timeout: float = 400.0) -> dict[str, Any]:
    """Run a tool once: its CPU, the chunks that the server sent it, and its P99 against the server's record."""
    golden.record()
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            tool.command(golden.url, load, Path(name)),
            capture_output=True, text=True, timeout=timeout, env=environment, cwd=name, check=False,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return {"tool": tool.name, "error": (done.stderr or done.stdout).strip()[-300:]}
        reported = tool.p99(Path(name), done.stdout)
    record = golden.record()[-load.requests :]
    truth = {
        "ttft": [sent[0] - arrived for arrived, sent, *_ in record],
        "tpot": [(sent[-1] - sent[0]) / (len(sent) - 1) for _, sent, *_ in record if len(sent) > 1],
        "e2e": [ended - arrived for arrived, _, ended, *_ in record],
    }
    p99 = {key: order_statistic(values, 99) for key, values in truth.items()}
    return {
        "tool": tool.name,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "requests": len(record),
        "chunks": sum(len(sent) for _, sent, *_ in record),
        "p99_reported_s": reported,
        "p99_record_s": p99,
        "p99_error": {key: reported[key] / p99[key] - 1 for key in p99},
    }


def compare_tools(tools: Sequence[Tool], golden: Golden, load: Load) -> list[dict[str, Any]]:
    """Each tool on the load, and on a tenth of a second of it to know what it takes to start."""
    results = []
    for tool in tools:
        small = run_tool(tool, golden, Load(load.rate, 3, load.input_tokens, load.output_tokens))
        result = run_tool(tool, golden, load)
        if "error" not in result and "error" not in small:
            chunks = result["chunks"] - small["chunks"]
            result["cpu_s_per_10k_chunks"] = 1e4 * (result["cpu_s"] - small["cpu_s"]) / chunks
            result["cpu_s_per_10k_chunks_with_start"] = 1e4 * result["cpu_s"] / result["chunks"]
            result["start_cpu_s"] = small["cpu_s"]
        results.append(result)
    return results
