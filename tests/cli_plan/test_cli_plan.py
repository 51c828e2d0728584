"""``autotune plan``: shapes that scripts rely on, what fits, and errors."""

from __future__ import annotations

import json

import pytest

from autotune.base.errors import UsageError
from autotune.base.units import parse_price
from autotune.catalog import load_gpu, load_model, load_workload
from autotune.cli.main import app
from autotune.search.planning import PlanRequest, make_plan, predict_at_capacity
from autotune.simulator.engine_model import build_engine_model
from autotune.simulator.long_run import LongRuns
from autotune.spec import Slo

SMALL = ("--configurations", "16", "--workers", "1")
FIELDS = {
    "gpu", "arguments", "fits", "reason", "capacity_rps", "output_tokens_per_s", "total_tokens_per_s",
    "p50_latency_s", "p99_latency_s", "p99_ttft_s",
}  # fmt: skip


@pytest.fixture
def run(capsys):
    def call(*words: str):
        app(["plan", *words], standalone_mode=False)
        return capsys.readouterr()

    return call


def test_the_document_of_a_plan(run) -> None:
    out = run("--gpu", "t4", "--model", "qwen3-4b", "--slo-p99", "10s", "--price", "0.53/h", "--json", *SMALL)
    (found,) = json.loads(out.out)["predictions"]
    assert set(found) >= FIELDS
    assert found["fits"]
    assert found["simulated"]
    assert not found["default"]["fits"]
    assert found["default"]["reason"] == "oom_kv_cache"
    assert found["capacity_rps"] >= found["fitted_default"]["capacity_rps"]
    assert found["p99_latency_s"] <= 10.0
    cost = 0.53 / 3600 / found["output_tokens_per_s"] * 1e6
    assert found["cost_per_million_output_tokens"] == pytest.approx(cost)
    assert "left" in out.err


def test_one_configuration_under_a_load_needs_no_objective(run) -> None:
    words = ("--gpu", "l4", "--model", "qwen3-4b", "--input-tokens", "512", "--output-tokens", "128", "--json")
    (found,) = json.loads(run(*words, "--set", "max-num-seqs=64", "--concurrency", "8").out)["predictions"]
    assert found["arguments"] == {"max-num-seqs": 64}
    assert found["capacity_rps"] is None
    assert found["total_tokens_per_s"] == pytest.approx(5 * found["output_tokens_per_s"], rel=0.1)
    # Weights of 8 GB at 300 GB/s: 8 sequences cannot decode faster than this.
    assert found["output_tokens_per_s"] < 8 / (8.04e9 / 300e9)


def test_the_price_scales_the_cost_and_tables_say_simulated(run) -> None:
    out = run("--gpu", "l4", "--model", "qwen3-4b", "--rate", "0.5", "--price", "1/h").out
    assert "Simulated" in out
    assert "not measured on this GPU" in out


def test_capacity_of_one_configuration_is_that_of_long_runs() -> None:
    gpu, model, workload = load_gpu("l4"), load_model("qwen3-4b"), load_workload("chat")
    slo = Slo.from_mapping({"p99_latency": "10s"})
    planned = predict_at_capacity(gpu, model, workload, slo, {"max-num-seqs": 16})
    assert planned.capacity_rps is not None
    engine = build_engine_model(gpu, model, {"max-num-seqs": 16})
    runs = LongRuns(workload, slo, requests=3000)
    assert runs.holds(engine, planned.capacity_rps)
    assert not runs.holds(engine, 1.03 * planned.capacity_rps)
    assert planned.prediction.slo_met


def test_an_objective_that_never_holds_has_no_capacity() -> None:
    slo = Slo.from_mapping({"p99_latency": "100ms"})
    planned = predict_at_capacity(
        load_gpu("t4"), load_model("qwen3-4b"), load_workload("chat"), slo, {"max-model-len": 1024}
    )
    assert planned.capacity_rps == 0.0


def test_workers_do_not_change_a_plan() -> None:
    request = PlanRequest(
        load_gpu("l4"),
        load_model("qwen3-0.6b"),
        load_workload("chat"),
        Slo.from_mapping({"p99_ttft": "1s", "p99_tpot": "30ms"}),
        configurations=12,
    )
    assert make_plan(request, workers=1) == make_plan(request, workers=2)


@pytest.mark.parametrize(("text", "hourly"), [("0.53/h", 0.53), ("$12/day", 0.5), ("2", 2.0), ("730/month", 1.0)])
def test_prices(text: str, hourly: float) -> None:
    assert parse_price(text) == pytest.approx(hourly)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "qwen3-4b", "--slo-p99", "10s"), "--gpu is missing"),
        (("--gpu", "t5", "--model", "qwen3-4b", "--slo-p99", "10s"), "t5"),
        (("--gpu", "t4", "--model", "qwen3-4b"), "no objective"),
        (("--gpu", "t4", "--model", "qwen3-4b", "--slo-p99", "10s", "--price", "cheap"), "not a price"),
        (("--gpu", "t4", "--model", "qwen3-4b", "--slo-p99", "10s", "--set", "max-num-seq=4"), "max-num-seqs"),
    ],
)
def test_wrong_usage_names_the_remedy(run, words, message) -> None:
    with pytest.raises(UsageError, match=message):
        run(*words)


def test_a_default_that_is_too_long_is_told_with_the_context_that_is_needed(run) -> None:
    words = ("--gpu", "t4", "--model", "qwen3-4b", "--concurrency", "4")
    assert "t4: add --set max-model-len=1024: the workload needs no longer context." in run(*words).out
    (found,) = json.loads(run(*words, "--set", "max-model-len=1024", "--json").out)["predictions"]
    assert found["fits"]


def test_a_model_that_is_too_big_is_told_once_and_with_what_to_do(run) -> None:
    out = run("--gpu", "t4", "--model", "qwen3-32b", "--slo-p99", "10s", *SMALL).out
    assert out.count("t4: oom_weights:") == 1
    assert "t4: nothing fits: choose a GPU with more memory" in out
    assert "best:" not in out
