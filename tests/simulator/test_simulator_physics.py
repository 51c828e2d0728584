"""The physics: closed forms, monotone in what must be monotone, and the same in every clock."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog import Gpu, load_gpu, load_model
from autotune.simulator.core import EngineCore
from autotune.simulator.engine_model import EngineModel, StartError, build_engine_model
from autotune.simulator.memory import Perturbation
from autotune.simulator.options import ConfigError
from autotune.simulator.sequence import Sequence
from autotune.simulator.virtual import SimulatedRun, simulate_load
from autotune.spec import LoadLevel

QWEN = load_model("qwen3-4b")
GPUS = ["t4", "a10g", "l4", "rtx3090", "rtx4090", "rtx5090", "a100-40gb", "a100-80gb", "l40s", "h100", "h200", "b200"]


def engine(gpu: str | Gpu = "a10g", **arguments: bool | int | float | str) -> EngineModel:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return build_engine_model(load_gpu(gpu) if isinstance(gpu, str) else gpu, QWEN, {"max-model-len": 4096} | named)


def closed(
    model: EngineModel, users: int, requests: int = 60, inputs: int = 256, outputs: int = 64, **extra: float
) -> SimulatedRun:
    return simulate_load(model, LoadLevel.closed(users), [inputs] * requests, [outputs] * requests, seed=1, **extra)


def throughput(run: SimulatedRun) -> float:
    return float(np.sum(run.output_tokens)) / run.ended


@pytest.mark.parametrize("gpu", GPUS)
def test_one_stream_is_bound_by_reading_the_weights(gpu):
    model = engine(gpu)
    facts = model.gpu
    seconds = model.physics.decode_time(1, 100)
    fastest = 8.04e9 / (facts.memory_bandwidth_gbs * 1e9)
    assert fastest < seconds < 3.0 * fastest + 0.004


@pytest.mark.parametrize("gpu", GPUS)
def test_more_bandwidth_is_never_slower(gpu):
    base = load_gpu(gpu)
    for factor in (1.1, 2.0):
        faster = base.model_copy(update={"memory_bandwidth_gbs": base.memory_bandwidth_gbs * factor})
        for sequences, context in ((1, 500), (64, 40_000), (200, 200_000)):
            assert engine(faster).physics.decode_time(sequences, context) <= engine(base).physics.decode_time(
                sequences, context
            )


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.integers(1, 400),
    context=st.integers(1, 300_000),
    chunk=st.integers(0, 4096),
    more=st.integers(1, 1000),
)
def test_more_work_never_takes_less_time(sequences, context, chunk, more):
    physics = engine("h100").physics
    slack = 1.0 + 1e-9
    assert physics.decode_time(sequences, context) <= slack * physics.decode_time(sequences, context + more)
    if chunk:
        pairs = chunk * chunk / 2
        first = physics.mixed_time(sequences, context, chunk, pairs, sequences, 0)
        assert first <= slack * physics.mixed_time(sequences, context + more, chunk, pairs, sequences, more)
        assert (
            first >= physics.decode_time(sequences, context) / slack
            or sequences + chunk > physics.options.max_capture_size
        )


def test_async_scheduling_hides_the_host_and_eager_pays_for_every_launch():
    asynchronous, synchronous = engine("h100"), engine("h100", async_scheduling=False)
    eager = engine("h100", enforce_eager=True)
    for sequences in (1, 64):
        fast, slow = (m.physics.decode_time(sequences, 1000 * sequences) for m in (asynchronous, synchronous))
        assert fast < slow
        assert eager.physics.decode_time(sequences, 1000 * sequences) > 0.0007 * QWEN.layers


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("gpu", ["t4", "h200"])
def test_the_times_of_steps_that_follow_are_those_of_single_steps(gpu, overlapped):
    physics = engine(gpu, **{"async-scheduling": overlapped}).physics
    for sequences, context in ((1, 100), (7, 900), (200, 100_000)):
        several = list(itertools.islice(physics.decode_times(sequences, context), 40))
        single = [physics.decode_time(sequences, context + sequences * step) for step in range(40)]
        assert several == single
        assert several == sorted(several), "the context grows"


def test_memory_is_monotone_in_context_and_sequences():
    base = load_gpu("l4")
    kv = [engine(base, max_num_seqs=seqs).kv_tokens for seqs in (16, 64, 256, 1024)]
    assert kv == sorted(kv, reverse=True)
    kv = [engine(base, max_num_batched_tokens=batch, max_num_seqs=64).kv_tokens for batch in (512, 2048, 8192, 16384)]
    assert kv == sorted(kv, reverse=True)
    kv = [engine(base, gpu_memory_utilization=share).kv_tokens for share in (0.8, 0.85, 0.9)]
    assert kv == sorted(kv)
    assert engine(base, kv_cache_dtype="fp8").kv_tokens == pytest.approx(2 * engine(base).kv_tokens, rel=0.001)
    fits = [_starts(base, length) for length in (1024, 8192, 32768, 40960)]
    assert fits == sorted(fits, reverse=True)
    assert engine(base, max_model_len="auto").options.max_model_len == 40960


def _starts(gpu: Gpu, length: int) -> bool:
    try:
        engine(gpu, max_model_len=length, gpu_memory_utilization=0.55)
    except StartError:
        return False
    return True


def test_kv_cache_is_what_an_h200_reported():
    """vLLM 0.24 on an H200 (which did not yet count graphs): 119.89, 120.58 and 120.22 GiB."""
    gpu = load_gpu("h200")
    for arguments, measured in (
        ({}, 119.89),
        ({"max-num-seqs": 256, "max-num-batched-tokens": 2048}, 120.58),
        ({"max-num-seqs": 64}, 120.22),
    ):
        model = build_engine_model(gpu, QWEN, arguments)
        assert model.kv_gib + model.memory.graphs_estimated == pytest.approx(measured, abs=0.3)
        assert model.memory.weights == pytest.approx(7.56, abs=0.01)


def test_a_perturbation_moves_only_its_part():
    gpu = load_gpu("a10g")
    plain = engine(gpu)
    heavier = build_engine_model(gpu, QWEN, {"max-model-len": 4096}, perturbation=Perturbation.parse("weights=1.1"))
    assert heavier.memory.weights == pytest.approx(1.1 * plain.memory.weights)
    assert heavier.memory.activation == plain.memory.activation
    with pytest.raises(ValueError, match="unknown part"):
        Perturbation.parse("wings=2")


def test_t4_with_the_models_own_context_does_not_start():
    with pytest.raises(StartError, match="estimated maximum model length is"):
        build_engine_model(load_gpu("t4"), QWEN, {})
    with pytest.raises(ConfigError, match="Bfloat16 is only supported"):
        build_engine_model(load_gpu("t4"), QWEN, {"dtype": "bfloat16"})


def test_throughput_grows_then_saturates_and_latency_grows():
    model = engine("a10g")
    runs = {users: closed(model, users, requests=max(60, 4 * users)) for users in (1, 4, 16, 64, 256, 512)}
    rates = [throughput(run) for run in runs.values()]
    for lower, higher in itertools.pairwise(rates):
        assert higher > 0.93 * lower
    assert rates[2] > 8 * rates[0]
    assert rates[5] < 1.25 * rates[4], "256 sequences are the limit"
    medians = [float(np.median(run.latency)) for run in runs.values()]
    assert medians == sorted(medians)


def test_scenario_c_a_tuned_t4_carries_five_users_below_ten_seconds():
    model = build_engine_model(load_gpu("t4"), QWEN, {"max-model-len": 2048, "max-num-seqs": 5})
    run = closed(model, 5, requests=100, inputs=64, outputs=100)
    assert throughput(run) < 200, "weights read once per step bound it"
    assert throughput(run) > 100
    assert np.percentile(run.latency, 99) < 10


def test_tokens_are_conserved_and_no_request_is_lost():
    model = engine("a10g", num_gpu_blocks_override=256)
    rng = np.random.default_rng(3)
    inputs, outputs = rng.integers(1, 1500, 200), rng.integers(1, 300, 200)
    run = simulate_load(model, LoadLevel.closed(32), inputs, outputs, seed=2)
    assert run.preemptions > 0
    assert run.done.all()
    assert (run.received_tokens == outputs).all()
    assert (run.first_token >= run.scheduled).all()
    assert (run.finished >= run.first_token).all()
    assert ((run.finished == run.first_token) == (outputs == 1)).all()


def test_the_same_seed_gives_the_same_run_and_another_another():
    model = engine("l4")
    first, again = closed(model, 8), closed(model, 8)
    other = simulate_load(model, LoadLevel.closed(8), [256] * 60, [64] * 60, seed=9)
    assert (first.finished == again.finished).all()
    assert not (first.finished == other.finished).all()


def test_virtual_time_equals_step_by_step():
    model = engine("l4", max_num_seqs=8)
    arrivals = np.cumsum(np.random.default_rng(5).exponential(0.25, 80))
    outputs = np.random.default_rng(6).integers(1, 150, 80)
    fast = simulate_load(model, LoadLevel.open(4.0), [200] * 80, outputs, arrivals=arrivals, seed=4)

    from autotune.simulator.sequence import Sequence

    core = model.new_core(seed=4)
    sequences = [Sequence(number, 200, int(output)) for number, output in enumerate(outputs)]
    for sequence, at in zip(sequences, arrivals, strict=True):
        core.advance(at)
        core.submit(sequence, at)
    while not core.idle:
        moment = core.next_moment()
        if moment is None:
            break
        core.advance(moment)
        core.outbox.clear()
    assert [s.finish_due for s in sequences] == pytest.approx(fast.finished.tolist(), rel=1e-9)
    assert [s.first_due for s in sequences] == pytest.approx(fast.first_token.tolist(), rel=1e-9)


def test_a_run_can_be_cut_by_time_and_by_the_observer():
    model = engine("a10g")
    cut = closed(model, 16, requests=400, until=5.0)
    assert cut.ended == 5.0
    assert 0 < cut.done.sum() < 400
    stopped = closed(model, 16, requests=400, stop=lambda now, answered: answered >= 20)
    assert 20 <= stopped.done.sum() < 40


def test_an_engine_core_goes_on_from_probe_to_probe():
    model = engine("a10g")
    core = model.new_core(seed=1)
    first = simulate_load(model, LoadLevel.closed(4), [100] * 20, [20] * 20, core=core)
    second = simulate_load(model, LoadLevel.closed(4), [100] * 20, [20] * 20, core=core)
    assert second.scheduled.min() >= first.finished.max()
    assert np.median(second.latency) == pytest.approx(np.median(first.latency), rel=0.2)


def test_stream_interval_and_more_api_servers_relieve_the_api_server():
    gpu = load_gpu("h200")
    slow = gpu.model_copy(update={"calibration": gpu.calibration.model_copy(update={"output_overhead_s": 2e-4})})
    runs = [
        closed(engine(slow, **arguments), 64, requests=128, outputs=256)
        for arguments in ({}, {"stream_interval": 8}, {"api_server_count": 4})
    ]
    rates = [throughput(run) for run in runs]
    assert rates[1] > 1.005 * rates[0], "a lagging server merges chunks by itself, so the gain is small"
    assert rates[2] > 1.005 * rates[0]


def core_with_handover(seconds: float) -> EngineCore:
    gpu = load_gpu("h200")
    calibration = gpu.calibration.model_copy(update={"handover_s": seconds})
    return engine(gpu.model_copy(update={"calibration": calibration})).new_core(noise=0.0)


def first_token_after(core: EngineCore, at: float, number: int) -> float:
    """Seconds from a request's arrival to its first token, with nothing else arriving."""
    core.advance(at)
    sequence = Sequence(number, 256, 400)
    core.submit(sequence, at)
    core.advance(at + 1.0)
    assert sequence.first_due is not None
    return sequence.first_due - at


def test_a_request_is_handed_over_late_to_an_engine_core_at_work_only():
    cores = (core_with_handover(0.0), core_with_handover(20e-3))
    (idle, busy), (idle_late, busy_late) = ([first_token_after(c, at, n) for n, at in enumerate((0, 1))] for c in cores)
    assert idle_late == idle
    assert busy > idle, "it waits for the step in flight"
    step = 3.7e-3  # one sequence on an H200: 3.64 ms a token were measured
    assert busy_late - busy == pytest.approx(20e-3, abs=step)


def test_nobody_overtakes_on_the_way_into_the_engine_core():
    core = core_with_handover(0.2)
    early, middle, late = (Sequence(number, 64, 1) for number in range(3))
    core.submit(early, 0.0)
    core.advance(0.005)
    core.submit(middle, 0.005)
    core.advance(0.1)
    assert early.finish_due is not None, "the engine is idle while the second one is under way"
    core.submit(late, 0.1)
    assert middle.arrived == late.arrived > 0.2


def test_two_gpus_are_faster_but_not_twice_as_fast():
    gpu = load_gpu("h100")
    one = build_engine_model(gpu, QWEN, {}, gpus=2)
    two = build_engine_model(gpu, QWEN, {"tensor-parallel-size": 2}, gpus=2)
    alone, together = one.physics.decode_time(32, 32_000), two.physics.decode_time(32, 32_000)
    assert alone / 2 < together < alone
    assert two.memory.weights == pytest.approx(one.memory.weights / 2, rel=0.01)
    assert two.kv_tokens > 1.8 * one.kv_tokens


def test_a_mixture_reads_only_the_experts_it_needs():
    model = load_model("qwen3-30b-a3b")
    physics = build_engine_model(load_gpu("h200"), model, {"max-model-len": 4096}).physics
    alone, crowd = physics.decode_time(1, 500), physics.decode_time(64, 32_000)
    assert alone < 0.35 * (2 * model.parameters / 4.8e12) + 0.006
    assert crowd > 3 * alone


def test_weight_quantization_speeds_up_decoding():
    gpu = load_gpu("l40s")
    plain, fp8 = engine(gpu), engine(gpu, quantization="fp8")
    ratio = fp8.physics.decode_time(1, 100) / plain.physics.decode_time(1, 100)
    assert 0.5 < ratio < 0.75
    assert fp8.memory.weights < 0.65 * plain.memory.weights


def test_options_are_plain_data():
    options = engine("a10g").options
    assert dataclasses.asdict(options)["max_num_seqs"] == 256
    assert options.max_num_batched_tokens == 2048
    assert options.capture_sizes[-1] == 512
