"""Three deployments that were tuned by hand: what their authors reported, what is simulated, and what physics allows.

    python benchmarks/scenarios.py [--json] [--without-search]

``docs/scenarios.md`` shows and explains the figures. Every configuration is predicted under the authors' own load, and
at the highest rate at which it holds the objective of the scenario's study (``studies/``), with the study's lengths.
The last one is what ``autotune plan`` finds for the study, unless ``--without-search``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.catalog import DTYPE_BYTES, Gpu, ModelShape, load_gpu, load_model
from autotune.cli.definition import StudyOptions, build_spec
from autotune.search.planning import PlanRequest, make_plan, predict_at_capacity
from autotune.simulator.prediction import Prediction, predict
from autotune.space import to_argv
from autotune.spec import Arguments, LengthSpec, LoadLevel, StudySpec, Workload

STUDIES = Path(__file__).parents[1] / "studies"
GIGA = 1e9
TERA = 1e12


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration of a scenario, and how many requests are open at once."""

    name: str
    arguments: Arguments
    users: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One deployment. ``reported_*`` are the authors' tok/s, of which they did not say which tokens they count."""

    name: str
    study: str
    inputs: str
    outputs: str
    users: int
    settings: tuple[Setting, ...]
    reported_before: float | None = None
    reported_after: float | None = None

    @property
    def workload(self) -> Workload:
        """The authors' lengths."""
        return Workload(input_tokens=LengthSpec.parse(self.inputs), output_tokens=LengthSpec.parse(self.outputs))

    def definition(self) -> StudySpec:
        """The study that tunes it."""
        return build_spec(StudyOptions(study=STUDIES / f"{self.study}.yaml"))


_SHORT = {"max-model-len": 4096}
_BY_HAND_B = {"gpu-memory-utilization": 0.9, "max-num-seqs": 512, "max-num-batched-tokens": 8192}
_BY_HAND_C = {
    "max-model-len": 2048, "max-num-seqs": 5, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.85,
    "block-size": 16,
}  # fmt: skip
SCENARIOS = (
    Scenario(
        "A", "rtx4090-nanbeige4.1-3b", "32:128", "50", 4,
        (
            Setting("vLLM's defaults", {}, 4),
            Setting("defaults, context fitted", _SHORT, 4),
            Setting("one request at a time", _SHORT, 1),
            Setting("one sequence, the others wait", {**_SHORT, "max-num-seqs": 1}, 4),
            Setting(
                "by hand",
                {**_SHORT, "max-num-seqs": 12, "max-num-batched-tokens": 3072, "gpu-memory-utilization": 0.9},
                4,
            ),
        ),
        120.0,
        320.0,
    ),
    Scenario(
        "B", "a10g-qwen3-4b-instruct-2507", "512:1536", "256:768", 16,
        (
            Setting("vLLM's defaults", {}, 16),
            Setting("by hand, as told", {**_BY_HAND_B, "max-model-len": 262144}, 16),
            Setting("one request at a time", _SHORT, 1),
            Setting("defaults, context fitted", _SHORT, 16),
            Setting("by hand, context fitted", {**_BY_HAND_B, **_SHORT}, 16),
        ),
        1240.0,
        3980.0,
    ),
    Scenario(
        "C", "t4-qwen3-4b-thinking-2507", "32:256", "100", 5,
        (
            Setting("vLLM's defaults", {}, 5),
            Setting("defaults, context fitted", {"max-model-len": 2048}, 5),
            Setting("one sequence, the others wait", {"max-model-len": 2048, "max-num-seqs": 1}, 5),
            Setting("by hand", {**_BY_HAND_C, "enforce-eager": True}, 5),
            Setting("by hand, with CUDA graphs", _BY_HAND_C, 5),
        ),
    ),
)  # fmt: skip


def output_limit(gpu: Gpu, model: ModelShape, workload: Workload, users: int) -> float:
    """Output tok/s that no engine can pass with so many requests open: the data sheet's bandwidth and matrix rate.

    Every decode step reads all layers and the output head once for all requests, and each request's KV cache; a prompt
    token costs two operations for each parameter of the layers. Nothing else is counted: real engines stay below.
    """
    dtype = "float16" if gpu.compute_capability < (8, 0) else model.dtype
    value = DTYPE_BYTES[dtype]
    context = workload.input_tokens.mean + workload.output_tokens.mean / 2
    step = model.active_parameters * value / users + context * model.kv_bytes_per_token(value)
    per_output_token = step / (gpu.memory_bandwidth_gbs * GIGA)
    rate = gpu.tflops["fp16" if dtype == "float16" else "bf16"] * TERA
    prompt = 2 * model.linear_parameters * workload.input_tokens.mean / rate
    return workload.output_tokens.mean / (prompt + workload.output_tokens.mean * per_output_token)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is simulated of one setting."""

    setting: Setting
    found: Prediction
    """Under the authors' load."""
    capacity_rps: float | None
    """Under the study's objective; None where it does not start."""


def simulated(scenario: Scenario) -> Iterator[Figures]:
    """The scenario's configurations."""
    study = scenario.definition()
    for setting in scenario.settings:
        yield _simulate(study, scenario, setting)


def tuned(scenario: Scenario) -> Figures:
    """What the planner finds for the study."""
    study = scenario.definition()
    request = PlanRequest(
        load_gpu(study.gpu), load_model(study.model), study.workload, study.slo, overrides=study.space, seed=study.seed
    )
    found = make_plan(request).best
    return _simulate(study, scenario, Setting("tuned", found.prediction.arguments, scenario.users))


def _simulate(study: StudySpec, scenario: Scenario, setting: Setting) -> Figures:
    gpu, model = load_gpu(study.gpu), load_model(study.model)
    found = predict(gpu, model, scenario.workload, setting.arguments, LoadLevel.closed(setting.users))
    planned = predict_at_capacity(gpu, model, study.workload, study.slo, setting.arguments, seed=study.seed)
    return Figures(setting, found, planned.capacity_rps)


def _document(figures: Figures) -> dict[str, object]:
    setting, found = figures.setting, figures.found
    return {
        "setting": setting.name,
        "flags": " ".join(to_argv(setting.arguments)),
        "users": setting.users,
        "fits": found.fits,
        "reason": found.reason,
        "output_tokens_per_s": found.output_tokens_per_s,
        "total_tokens_per_s": found.total_tokens_per_s,
        "p50_ttft_s": found.p50_ttft_s,
        "p99_ttft_s": found.p99_ttft_s,
        "p50_latency_s": found.p50_latency_s,
        "p99_latency_s": found.p99_latency_s,
        "capacity_rps": figures.capacity_rps,
    }


def table(documents: list[dict[str, object]]) -> str:
    """As in ``docs/scenarios.md``."""
    lines = [
        "| configuration | flags | at once | output tok/s | total tok/s | TTFT P50 | TTFT P99 | P50 | P99 | carries |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for document in documents:
        flags = f"`{document['flags']}`" if document["flags"] else ""
        head = f"| {document['setting']} | {flags} | {document['users']} "
        if not document["fits"]:
            lines.append(f"{head}| does not start: {document['reason']} | | | | | | |")
            continue
        throughput = (f"{document[name]:,.0f}" for name in ("output_tokens_per_s", "total_tokens_per_s"))
        times = (f"{document[name]:.3g} s" for name in ("p50_ttft_s", "p99_ttft_s", "p50_latency_s", "p99_latency_s"))
        carries = f"{document['capacity_rps']:.3g} req/s"
        lines.append(f"{head}| {' | '.join((*throughput, *times, carries))} |")
    return "\n".join(lines)


def main() -> int:
    """Print the tables; exit code 1 when a simulated figure is beyond what physics allows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--without-search", action="store_true", help="leave out what the planner finds")
    options = parser.parse_args()
    documents: dict[str, dict[str, object]] = {}
    worst = 0.0
    for scenario in SCENARIOS:
        study = scenario.definition()
        gpu, model = load_gpu(study.gpu), load_model(study.model)
        found = [*simulated(scenario), *(() if options.without_search else (tuned(scenario),))]
        limits = {
            users: output_limit(gpu, model, scenario.workload, users) for users in {f.setting.users for f in found}
        }
        worst = max(worst, *((f.found.output_tokens_per_s or 0.0) / limits[f.setting.users] for f in found))
        rows = [_document(figures) for figures in found]
        documents[scenario.name] = {
            "study": scenario.study,
            "load": f"{scenario.users} at once, {scenario.inputs} tokens in, {scenario.outputs} out",
            "objective": str(study.slo),
            "reported_tokens_per_s": {"before": scenario.reported_before, "after": scenario.reported_after},
            "limit_output_tokens_per_s": {str(users): round(limit, 1) for users, limit in sorted(limits.items())},
            "rows": rows,
        }
        if not options.json:
            told = ", ".join(f"{limit:,.0f} with {users} at once" for users, limit in sorted(limits.items()))
            print(f"## {scenario.name}: {documents[scenario.name]['load']}\n")
            print(f"Limit, output tok/s: {told}\n\n{table(rows)}\n")
    goals = [
        {
            "name": "largest simulated share of the physical limit",
            "value": round(worst, 3),
            "goal": 1.0,
            "met": worst <= 1,
        }
    ]
    if options.json:
        print(json.dumps({"goals": goals, "scenarios": documents}, indent=1))
    return 0 if all(goal["met"] for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
