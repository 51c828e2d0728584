"""Launch or not: rules, memory and experience together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog import load_gpu, load_model
from autotune.space import Feasibility, Layer, TrialEvidence, build_space
from autotune.space._belief import Belief, normal_cdf
from autotune.spec import ArgumentValue, Workload

CHAT = Workload(input_tokens="256:768", output_tokens="128:384")
Arguments = dict[str, ArgumentValue]


def t4() -> Feasibility:
    return Feasibility(build_space(load_gpu("t4"), load_model("qwen3-4b"), CHAT), CHAT)


def test_rules_come_first_then_memory() -> None:
    feasibility = t4()
    refused = feasibility.check({"dtype": "bfloat16"})
    assert refused is not None
    assert (refused.layer, refused.cause) == (Layer.RULES, "unsupported_hardware")
    refused = feasibility.check({})
    assert refused is not None
    assert (refused.layer, refused.cause) == (Layer.MEMORY, "oom_kv_cache")
    assert "5.6 GiB of KV cache" in str(refused)
    assert feasibility.check({"max-model-len": 2048}) is None


def test_what_failed_is_not_launched_again_nor_what_asks_for_more() -> None:
    feasibility = t4()
    edge: Arguments = {"max-model-len": 2048, "gpu-memory-utilization": 0.945}
    assert feasibility.check(edge) is None
    feasibility.learn(TrialEvidence(edge, "oom_runtime"))
    again = feasibility.check(edge)
    assert again is not None
    assert (again.layer, again.cause) == (Layer.EXPERIENCE, "oom_runtime")
    assert feasibility.check({**edge, "gpu-memory-utilization": 0.95}) is not None
    assert feasibility.check({**edge, "gpu-memory-utilization": 0.85}) is None


def test_what_ran_is_never_refused_for_its_memory() -> None:
    """The catalogue may be wrong: a card that runs what we think hopeless proves it."""
    feasibility = t4()
    hopeless: Arguments = {"max-model-len": 40960}
    assert feasibility.check(hopeless) is not None
    feasibility.learn(TrialEvidence(hopeless))
    assert feasibility.check(hopeless) is None
    assert feasibility.check({"max-model-len": 30000}) is None


def test_a_value_that_failed_twice_and_never_ran_is_dropped() -> None:
    feasibility = Feasibility(build_space(load_gpu("a10g"), load_model("qwen3-4b"), CHAT), CHAT)
    base: Arguments = {"max-model-len": 2048}
    feasibility.learn(TrialEvidence({**base, "enable-prefix-caching": True}))
    one: Arguments = {**base, "attention-backend": "FLASHINFER", "enable-prefix-caching": True}
    two: Arguments = {**base, "attention-backend": "FLASHINFER", "max-num-seqs": 16}
    feasibility.learn(TrialEvidence(one, "unsupported_hardware"))
    assert feasibility.check(two) is None
    feasibility.learn(TrialEvidence(two, "unsupported_hardware"))
    refused = feasibility.check({**base, "attention-backend": "FLASHINFER", "max-num-seqs": 64})
    assert refused is not None
    assert refused.layer is Layer.EXPERIENCE
    assert "attention-backend FLASHINFER" in refused.message
    assert feasibility.check({**base, "attention-backend": "TRITON_ATTN"}) is None
    assert feasibility.check(base) is None


def test_what_two_failures_share_is_blamed_and_nothing_else() -> None:
    feasibility = Feasibility(
        build_space(load_gpu("a10g"), load_model("qwen3-4b"), CHAT, fixed={"max-model-len": 2048}), CHAT
    )
    base: Arguments = {"max-model-len": 2048}

    def refuses(**settings: ArgumentValue) -> bool:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return feasibility.check({**base, **given}) is not None

    def fail(cause: str, **settings: ArgumentValue) -> list[str]:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return feasibility.learn(TrialEvidence({**base, **given}, cause))

    # Two values, each refused with other neighbours; the fixed context is common to all and to blame for none.
    assert fail("invalid_config", attention_backend="FLASHINFER", max_num_seqs=16) == []
    assert fail("invalid_config", block_size=128, max_num_seqs=64) == []
    assert not refuses(max_num_seqs=16)
    assert fail("unsupported_hardware", block_size=128, max_num_seqs=32) == [], "another cause, another story"
    told = fail("invalid_config", attention_backend="FLASHINFER", max_num_seqs=32)
    assert told == [
        "attention-backend FLASHINFER failed twice here (invalid_config) and never ran: it is left out from now on."
    ]
    assert not refuses(block_size=128)
    assert fail("invalid_config", block_size=128, max_num_seqs=8) != []
    assert refuses(block_size=128)
    assert refuses(attention_backend="FLASHINFER")
    assert not refuses(block_size=64, attention_backend="TRITON_ATTN", max_num_seqs=16)


def test_the_same_configuration_twice_blames_nothing_and_two_suspects_only_together() -> None:
    feasibility = Feasibility(build_space(load_gpu("a10g"), load_model("qwen3-4b"), CHAT), CHAT)
    base: Arguments = {"max-model-len": 2048}
    feasibility.learn(TrialEvidence(base))
    pair: Arguments = {**base, "attention-backend": "TRITON_ATTN", "block-size": 64}
    feasibility.learn(TrialEvidence({**pair, "max-num-seqs": 16}, "invalid_config"))
    feasibility.learn(TrialEvidence({**pair, "max-num-seqs": 16}, "invalid_config"))
    assert feasibility.check({**pair, "max-num-seqs": 32}) is None
    feasibility.learn(TrialEvidence({**pair, "max-num-seqs": 64}, "invalid_config"))
    assert feasibility.check({**pair, "max-num-seqs": 32}) is not None
    assert feasibility.check({**base, "block-size": 64}) is None
    assert feasibility.check({**base, "attention-backend": "TRITON_ATTN"}) is None
    feasibility.learn(TrialEvidence({**base, "block-size": 64}))
    refused = feasibility.check({**base, "attention-backend": "TRITON_ATTN"})
    assert refused is not None, "the other one ran, so this one is left"
    assert refused.message.startswith("attention-backend TRITON_ATTN failed twice")


def test_faults_teach_nothing() -> None:
    feasibility = t4()
    fine: Arguments = {"max-model-len": 2048}
    for cause in ("port_in_use", "engine_hang", "disk_full"):
        feasibility.learn(TrialEvidence(fine, cause))
    assert feasibility.check(fine) is None


def test_the_probability_of_failure_grows_with_what_is_asked() -> None:
    feasibility = t4()
    chances = [
        feasibility.failure_probability({"max-model-len": length}) for length in (2048, 16384, 28672, 32768, 40960)
    ]
    assert chances == sorted(chances)
    assert chances[0] < 0.1
    assert chances[-1] > 0.9


@given(
    st.floats(-3, 3),
    st.floats(0.1, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_sign_gives_the_moments_of_a_truncated_normal(mean: float, deviation: float, positive: bool) -> None:
    """Against numerical integration."""
    import numpy as np

    if (positive and mean / deviation < -2.9) or (not positive and mean / deviation > 2.9):
        return
    grid = np.linspace(mean - 9 * deviation, mean + 9 * deviation, 200_001)
    density = np.exp(-(((grid - mean) / deviation) ** 2) / 2) * ((grid >= 0) if positive else (grid < 0))
    expected = float((grid * density).sum() / density.sum())
    spread = float((((grid - expected) ** 2) * density).sum() / density.sum())
    belief = Belief(np.array([mean]), np.array([deviation]))
    belief.observe_sign(np.array([1.0]), 0.0, positive, 0.0)
    assert abs(belief.mean[0] - expected) < 1e-3 * deviation
    assert abs(belief.covariance[0, 0] - spread) < 2e-3 * deviation**2


def test_the_normal_distribution() -> None:
    assert normal_cdf(0) == 0.5
    assert abs(normal_cdf(1.959964) - 0.975) < 1e-6


def test_the_benchmark_meets_its_goals_in_short() -> None:
    """Three worlds of each pair; the full run is benchmarks/feasibility.py."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "benchmarks/feasibility.py", "--worlds", "3", "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"met": false' not in done.stdout
