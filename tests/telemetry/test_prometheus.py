"""The exposition format against its specification, and vLLM's names old and new."""

from __future__ import annotations

import math

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.telemetry import DeviceError, EngineMetricsDevice, parse_metrics
from autotune.telemetry.engine_metrics import engine_sample
from autotune.telemetry.testing import DeviceConformance

# The example of https://prometheus.io/docs/instrumenting/exposition_formats/, abridged.
SPECIFICATION = r"""# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# Escaping in label values:
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9

# Minimalistic line:
metric_without_timestamp_and_labels 12.47

# A weird metric from before the epoch:
something_weird{problem="division by zero"} +Inf -3982045

http_request_duration_seconds_bucket{le="+Inf"} 144320
http_request_duration_seconds_sum 53423
rpc_duration_seconds{quantile="0.01",} 3102
foo_bucket{le="0.1"} 8 # {trace_id="KOO5S4vxi0o"} 0.67
nothing_yet NaN
"""

VLLM_NEW = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.3
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 400.0
vllm:generation_tokens_total{engine="1",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 6.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 50.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1400.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1024"} 1.0
vllm:cache_config_info{block_size="16",engine="1",kv_cache_size_tokens="20000",num_gpu_blocks="9"} 1.0
"""

VLLM_OLD = """vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 5.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0
"""


def served(text: str, status: int = 200) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        return httpx.Response(status, text=text)

    return httpx.MockTransport(answer)


class TestEngineMetricsDeviceConforms(DeviceConformance):
    def make_device(self) -> EngineMetricsDevice:
        return EngineMetricsDevice("http://127.0.0.1:8000/", transport=served(VLLM_NEW))

    def make_broken_device(self) -> EngineMetricsDevice:
        return EngineMetricsDevice("http://127.0.0.1:8000", transport=served("no", 503))


def test_the_specifications_example() -> None:
    points = parse_metrics(SPECIFICATION)
    assert [(p.name, dict(p.labels), p.value) for p in points[:-1]] == [
        ("http_requests_total", {"method": "post", "code": "200"}, 1027),
        ("http_requests_total", {"method": "post", "code": "400"}, 3),
        (
            "msdos_file_access_time_seconds",
            {"path": r"C:\DIR\FILE.TXT", "error": 'Cannot find file:\n"FILE.TXT"'},
            1.458255915e9,
        ),
        ("metric_without_timestamp_and_labels", {}, 12.47),
        ("something_weird", {"problem": "division by zero"}, math.inf),
        ("http_request_duration_seconds_bucket", {"le": "+Inf"}, 144320),
        ("http_request_duration_seconds_sum", {}, 53423),
        ("rpc_duration_seconds", {"quantile": "0.01"}, 3102),
        ("foo_bucket", {"le": "0.1"}, 8),
    ]
    assert math.isnan(points[-1].value)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20), max_size=4))
def test_label_values_survive_escaping(labels: dict[str, str]) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    body = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    (point,) = parse_metrics(f"x{{{body}}} 2.5\n")
    assert (dict(point.labels), point.value) == (labels, 2.5)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_metrics(text)


def test_only_the_named_series() -> None:
    points = parse_metrics(VLLM_NEW, ["vllm:num_requests_waiting"])
    assert [p.value for p in points] == [2, 0]


def test_todays_names_over_two_engines() -> None:
    values = engine_sample(parse_metrics(VLLM_NEW))
    assert values["running"] == 12
    assert values["waiting"] == 2
    assert values["kv_cache_usage"] == 0.4
    assert values["preemptions"] == 3
    assert values["prompt_tokens"] == 1000
    assert values["generation_tokens"] == 500
    assert values["prefix_cache_queries"] == 1000
    assert values["prefix_cache_hits"] == 250
    assert values["requests_finished"] == 10
    assert (values["iterations"], values["iteration_tokens"]) == (50, 1400)
    assert values["kv_cache_tokens"] == 1024 * 16 + 20000
    assert values["simulator_lag_seconds"] is None


def test_names_of_older_releases() -> None:
    values = engine_sample(parse_metrics(VLLM_OLD))
    assert values["kv_cache_usage"] == 0.25
    assert (values["prefix_cache_queries"], values["prefix_cache_hits"]) == (10, 5)
    assert values["kv_cache_tokens"] is None
    assert values["preemptions"] is None


def test_the_simulators_lag() -> None:
    assert engine_sample(parse_metrics("autotune_simulator_lag_seconds 0.25"))["simulator_lag_seconds"] == 0.25


def test_a_server_that_is_gone() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    device = EngineMetricsDevice("http://127.0.0.1:9", transport=httpx.MockTransport(refuse))
    device.open()
    with pytest.raises(DeviceError, match="does not answer"):
        device.sample()
    device.close()
