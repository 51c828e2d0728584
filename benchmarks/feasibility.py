"""How many launches that would run out of memory are refused, and how many that would run are refused wrongly.

    python benchmarks/feasibility.py [--json] [--pairs 11] [--worlds 12] [--trials 40] [--seed 0]

Ground truth is the simulated engine started on paper, with its memory model perturbed: in each world weights,
activations, graphs, overhead and KV cache are off by factors that our model does not know. In each world a study
proposes random configurations of a wide space; each is judged before its launch, and those that are launched
teach what a real engine would: the figures it prints, and how it ended. Running out of memory under load counts
like running out at the start: a step as large as the workload allows must fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from autotune.catalog import Gpu, ModelShape, load_gpu, load_model, load_workload
from autotune.simulator.engine_model import StartError, StartPhase, build_engine_model
from autotune.simulator.memory import Perturbation
from autotune.space import Feasibility, TrialEvidence, build_space
from autotune.spec import Arguments, ArgumentValue, Workload

#: GPU, model, workload.
PAIRS = (
    ("t4", "qwen3-4b", "chat"),
    ("t4", "qwen3-1.7b", "summarize"),
    ("a10g", "qwen3-4b-instruct-2507", "rag"),
    ("rtx4090", "nanbeige4.1-3b", "chat"),
    ("l4", "llama-3.1-8b-instruct", "chat"),
    ("rtx3090", "mistral-7b-instruct-v0.3", "code"),
    ("a100-40gb", "qwen3-14b", "chat"),
    ("l40s", "qwen2.5-7b-instruct", "rag"),
    ("h100", "qwen3-32b", "chat"),
    ("h200", "qwen3-30b-a3b", "batch"),
    ("a10g", "gemma-3-4b-it", "rag"),
)
_CAUSES = {
    StartPhase.INIT_DEVICE: "gpu_memory_busy",
    StartPhase.LOAD_WEIGHTS: "oom_weights",
    StartPhase.PROFILE: "oom_activation",
    StartPhase.KV_CACHE: "oom_kv_cache",
    StartPhase.KV_ALLOCATION: "oom_kv_cache",
    StartPhase.CAPTURE: "oom_cudagraph",
}


@dataclass
class Tally:
    """Counts of one pair, or of all."""

    out_of_memory: int = 0
    refused_rightly: int = 0
    ran: int = 0
    refused_wrongly: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    layers: Counter[str] = field(default_factory=Counter)
    wrong_layers: Counter[str] = field(default_factory=Counter)

    def count(self, cause: str | None, layer: str | None) -> None:
        """One configuration: how it would really end, and which layer refused it, if one did."""
        if layer is not None:
            self.layers[layer] += 1
        if cause is None:
            self.ran += 1
            self.refused_wrongly += layer is not None
            if layer is not None:
                self.wrong_layers[layer] += 1
        else:
            self.out_of_memory += 1
            self.causes[cause] += 1
            self.refused_rightly += layer is not None
            if layer is None:
                self.missed[cause] += 1

    def add(self, other: Tally) -> None:
        """Sum up."""
        self.out_of_memory += other.out_of_memory
        self.refused_rightly += other.refused_rightly
        self.ran += other.ran
        self.refused_wrongly += other.refused_wrongly
        self.causes += other.causes
        self.missed += other.missed
        self.layers += other.layers
        self.wrong_layers += other.wrong_layers

    @property
    def caught(self) -> float:
        """Share of the configurations that run out of memory which were refused."""
        return self.refused_rightly / max(1, self.out_of_memory)

    @property
    def wrong(self) -> float:
        """Share of the configurations that run which were refused."""
        return self.refused_wrongly / max(1, self.ran)


@dataclass(frozen=True)
class Truth:
    """How a launch would end: its cause (None: it serves its load) and what the engine would have printed."""

    cause: str | None
    weights_gib: float | None = None
    kv_gib: float | None = None
    graphs_gib: float | None = None
    kv_tokens: int | None = None


def truth(gpu: Gpu, model: ModelShape, arguments: Arguments, workload: Workload, world: Perturbation) -> Truth:
    """Launch on paper in a perturbed world and load it as far as the workload can."""
    try:
        engine = build_engine_model(gpu, model, arguments, perturbation=world, gpus=1)
    except StartError as error:
        return Truth(_CAUSES[error.phase])
    options, memory = engine.options, engine.memory
    tokens = min(options.max_num_batched_tokens, options.max_num_seqs * workload.longest_sequence)
    sampled = min(options.max_num_seqs, tokens)
    peak = memory.step_peak(tokens, sampled, options.max_num_batched_tokens)
    cause = "oom_runtime" if peak > memory.spare(engine.kv_gib) else None
    return Truth(cause, memory.weights, engine.kv_gib, memory.graphs, engine.kv_tokens)


def random_world(generator: np.random.Generator) -> Perturbation:
    """Errors of our model that nobody knows beforehand: log-normal factors."""

    def factor(sigma: float) -> float:
        return float(np.exp(sigma * generator.standard_normal()))

    return Perturbation(
        weights=factor(0.005),
        activation=factor(0.25),
        graphs=factor(0.3),
        overhead=factor(0.4),
        kv=1.0 + 0.01 * float(generator.random()),
    )


def random_arguments(generator: np.random.Generator, gpu: Gpu, model: ModelShape) -> dict[str, ArgumentValue]:
    """A proposal of a wide space: what a person or an optimiser without a memory model would try."""
    arguments: dict[str, ArgumentValue] = {
        "max-num-seqs": int(2 ** generator.integers(0, 12)),
        "max-num-batched-tokens": int(2 ** generator.integers(9, 18)),
        "gpu-memory-utilization": float(generator.choice([0.5, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99])),
    }
    if generator.random() < 0.7:
        longest = int(np.log2(model.context_length))
        arguments["max-model-len"] = min(model.context_length, int(2 ** generator.integers(11, longest + 1)))
    if generator.random() < 0.15:
        arguments["enforce-eager"] = True
    if generator.random() < 0.2 and "fp8" in gpu.tflops:
        arguments["kv-cache-dtype"] = "fp8"
    return {name: value for name, value in arguments.items() if generator.random() < 0.85}


def study(pair: tuple[str, str, str], trials: int, generator: np.random.Generator) -> tuple[Tally, Tally]:
    """One study in one world: counts of all proposals, and of those after the first five launches."""
    gpu, model, workload = load_gpu(pair[0]), load_model(pair[1]), load_workload(pair[2])
    world = random_world(generator)
    feasibility = Feasibility(build_space(gpu, model, workload), workload)
    whole, later = Tally(), Tally()
    launches = 0
    while whole.out_of_memory + whole.ran < trials:
        arguments = random_arguments(generator, gpu, model)
        if feasibility.space.violations(arguments):
            continue
        if int(arguments.get("max-model-len", model.context_length)) < workload.longest_sequence:
            continue
        ending = truth(gpu, model, arguments, workload, world)
        refusal = feasibility.check(arguments)
        layer = None if refusal is None else f"{refusal.layer}:{refusal.cause}"
        for tally in (whole, later) if launches >= 5 else (whole,):
            tally.count(ending.cause, layer)
        if refusal is None:
            launches += 1
            feasibility.learn(
                TrialEvidence(
                    arguments, ending.cause, ending.weights_gib, ending.kv_gib, ending.graphs_gib, ending.kv_tokens
                )
            )
    return whole, later


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=len(PAIRS))
    parser.add_argument("--worlds", type=int, default=12)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    total, settled = Tally(), Tally()
    rows = []
    for number, pair in enumerate(PAIRS[: options.pairs]):
        tally = Tally()
        for world in range(options.worlds):
            whole, later = study(pair, options.trials, np.random.default_rng((options.seed, number, world)))
            tally.add(whole)
            settled.add(later)
        total.add(tally)
        rows.append(
            {
                "gpu": pair[0],
                "model": pair[1],
                "workload": pair[2],
                "out_of_memory": tally.out_of_memory,
                "refused_of_these": round(tally.caught, 4),
                "run": tally.ran,
                "refused_of_those": round(tally.wrong, 4),
            }
        )
    goals = [
        goal("out_of_memory_refused", round(total.caught, 4), ">= 0.90", total.caught >= 0.9),
        goal("runnable_refused", round(total.wrong, 4), "<= 0.01", total.wrong <= 0.01),
        goal("gpu_model_pairs", len(rows), ">= 5", len(rows) >= 5),
    ]
    document: dict[str, object] = {
        "goals": goals,
        "pairs": rows,
        "after_five_launches": {
            "refused_of_failing": round(settled.caught, 4),
            "refused_of_running": round(settled.wrong, 4),
        },
        "out_of_memory": total.out_of_memory,
        "run": total.ran,
        "causes": dict(total.causes),
        "missed_causes": dict(total.missed),
        "refusals_by_layer": dict(total.layers),
        "wrong_refusals_by_layer": dict(total.wrong_layers),
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        for row in rows:
            print(" ".join(f"{value!s:>22}" for value in row.values()))
        for key, value in document.items():
            if key != "pairs":
                print(f"{key}: {value}")
    return 0 if all(entry["met"] for entry in goals) else 1


def goal(name: str, value: float, limit: str, met: bool) -> dict[str, object]:
    """One goal as every benchmark reports it."""
    return {"name": name, "value": value, "goal": limit, "met": met}


if __name__ == "__main__":
    sys.exit(main())
