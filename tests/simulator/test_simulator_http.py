"""The HTTP face, checked with a client that knows nothing of the server's code."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from autotune.simulator.tokens import answer_text

FAMILIES = Path(__file__).parent / "data" / "vllm_0.24.0_metric_families.txt"


@pytest.fixture(scope="module")
def server(launch):
    engine = launch("--max-model-len=2048", "--max-num-seqs=64", "--served-model-name", "qwen", "other")
    engine.wait_ready()
    return engine


def words(text: str) -> int:
    return len(text.split())


def test_streamed_completion_counts_every_token(server):
    events = server.events(
        "/v1/completions",
        {
            "model": "qwen",
            "prompt": list(range(100)),
            "max_tokens": 37,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert words(text) == 37
    assert text == answer_text(0, 37)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] == 100
    assert events[-1]["usage"]["completion_tokens"] == 37
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert words(events[0]["choices"][0]["text"]) == 1, "the first token leaves by itself"
    assert all(event["object"] == "text_completion" for event in events)


def test_streamed_chat_starts_with_the_role(server):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "ignore_eos": True, "stream": True}
    events = server.events("/v1/chat/completions", body)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert words(text) == 9
    assert "usage" not in events[-1]


def test_whole_answers(server):
    status, text = server.post(
        "/v1/completions", {"model": "other", "prompt": "one two", "max_tokens": 4, "ignore_eos": True}
    )
    document = json.loads(text)
    assert status == 200
    assert words(document["choices"][0]["text"]) == 4
    assert document["usage"] == {
        "prompt_tokens": 2,
        "total_tokens": 6,
        "completion_tokens": 4,
        "prompt_tokens_details": None,
    }
    chat = {
        "model": "qwen",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 3,
        "ignore_eos": True,
    }
    document = json.loads(server.post("/v1/chat/completions", chat)[1])
    assert document["object"] == "chat.completion"
    assert words(document["choices"][0]["message"]["content"]) == 3


def test_log_probabilities_come_in_vllms_form_when_asked_for(server):
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    _, text = server.post("/v1/completions", body | {"return_tokens_as_token_ids": True})
    found = json.loads(text)["choices"][0]["logprobs"]
    assert [len(found[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [4] * 4
    for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert token.startswith("token_id:")
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2
    again = json.loads(server.post("/v1/completions", body | {"return_tokens_as_token_ids": True})[1])
    assert again["choices"][0]["logprobs"] == found
    assert server.post("/v1/completions", body | {"logprobs": 21})[0] == 400
    assert json.loads(server.post("/v1/completions", {"prompt": [5]})[1])["choices"][0]["logprobs"] is None


def test_several_prompts_and_answers(server):
    body = {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 3, "ignore_eos": True}
    document = json.loads(server.post("/v1/completions", body)[1])
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert document["usage"]["completion_tokens"] == 12


def test_a_model_may_stop_by_itself_unless_told_not_to(server):
    body = {"prompt": "tell me", "max_tokens": 1900}
    document = json.loads(server.post("/v1/completions", body)[1])
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] < 1900
    again = json.loads(server.post("/v1/completions", body)[1])
    assert again["usage"]["completion_tokens"] == document["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"model": "nobody", "prompt": "x"}, 404, "The model `nobody` does not exist."),
        ({"prompt": "x", "max_tokens": 2048}, 400, "This model's maximum context length is 2048 tokens. However, you"),
        ({"prompt": "x", "max_tokens": 4000}, 400, "max_tokens=4000 cannot be greater than max_model_len=max_total"),
        ({"prompt": list(range(2048)), "max_tokens": 1}, 400, "maximum context length is 2048 tokens"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": "x", "max_tokens": 5, "min_tokens": 6}, 400, "min_tokens"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature must be non-negative"),
        ({"prompt": [151936]}, 400, "out of vocabulary"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "Stream options"),
        ([], 400, "validation error"),
    ],
)
def test_refusals_have_vllms_form(server, body, status, part):
    got, text = server.post("/v1/completions", body)
    error = json.loads(text)["error"]
    assert got == status == error["code"]
    assert part in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_other_routes(server):
    assert server.get("/health") == (200, "")
    assert server.get("/ping")[0] == 200
    assert json.loads(server.get("/version")[1])["version"].startswith("0.33.0")
    models = json.loads(server.get("/v1/models")[1])
    assert [card["id"] for card in models["data"]] == ["qwen", "other"]
    assert models["data"][0]["max_model_len"] == 2048
    assert json.loads(server.post("/tokenize", {"model": "qwen", "prompt": "a b c"})[1])["count"] == 3
    assert json.loads(server.post("/detokenize", {"tokens": [1, 2]})[1])["prompt"].split() == ["this", "is"]
    info = json.loads(server.get("/server_info?config_format=json")[1])
    assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 64
    assert server.get("/nothing") == (404, '{"detail":"Not Found"}')
    assert server.get("/v1/completions")[0] == 405


def test_prefix_cache_hits_and_reset(server):
    def hits() -> float:
        lines = server.get("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith("vllm:prefix_cache_hits_total")).split()[-1])

    body = {"prompt": [7] * 320, "max_tokens": 2, "ignore_eos": True}
    assert json.loads(server.post("/reset_prefix_cache")[1]) == {"success": True}
    before = hits()
    server.post("/v1/completions", body)
    assert hits() == before
    server.post("/v1/completions", body)
    assert hits() == before + 304, "all full blocks but the one with the last token"
    server.post("/reset_prefix_cache")
    server.post("/v1/completions", body)
    assert hits() == before + 304


def test_metrics_are_read_by_the_prometheus_client(server):
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(server.get("/metrics")[1])}
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens",
        "vllm:prompt_tokens",
        "vllm:num_preemptions",
        "vllm:request_success",
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:cache_config_info",
        "autotune_simulator_lag_seconds",
    ):
        assert name in families, name
    cache = families["vllm:cache_config_info"].samples[0].labels
    assert int(cache["num_gpu_blocks"]) * int(cache["block_size"]) == int(cache["kv_cache_size_tokens"])
    ttft = families["vllm:time_to_first_token_seconds"]
    counts = [sample.value for sample in ttft.samples if sample.name.endswith("_bucket")]
    assert counts == sorted(counts)


def test_every_family_of_a_real_engine_is_there(server):
    """The families that vLLM 0.24.0 exposed on an H200, its estimates of work and traffic left out."""
    wanted = {
        tuple(line.split()) for line in FAMILIES.read_text().splitlines() if not line.startswith("vllm:estimated_")
    }
    text = server.get("/metrics")[1]
    shown = {tuple(line.split()[2:4]) for line in text.splitlines() if line.startswith("# TYPE")}
    assert wanted <= shown


def test_the_openai_package_works(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["qwen", "other"]
    whole = client.chat.completions.create(
        model="qwen", messages=[{"role": "user", "content": "hi"}], max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert whole.usage.completion_tokens == 5
    stream = client.chat.completions.create(
        model="qwen",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert words("".join(c.choices[0].delta.content or "" for c in chunks if c.choices)) == 8
    assert chunks[-1].usage.completion_tokens == 8
    text = client.completions.create(model="qwen", prompt="hi", max_tokens=5, extra_body={"ignore_eos": True})
    assert words(text.choices[0].text) == 5
    parts = client.completions.create(
        model="qwen", prompt="hi", max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    )
    assert words("".join(part.choices[0].text for part in parts)) == 6
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="hi")


def test_a_client_that_leaves_frees_its_place(server):
    import http.client
    import time

    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"prompt": [1] * 64, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().read(100)
    connection.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        text = server.get("/metrics")[1]
        if (
            'vllm:num_requests_running{engine="0",model_name="qwen"} 0.0' in text
            and 'reason="abort",model_name="qwen"} 1.0' in text
        ):
            return
    raise AssertionError("the request is still running")


def test_many_at_once_all_complete(server):
    results: list[int] = []

    def ask(number: int) -> None:
        body = {"prompt": [number] * 50, "max_tokens": 20, "ignore_eos": True, "stream": True}
        events = server.events("/v1/completions", body)
        results.append(words("".join(choice["text"] for event in events for choice in event["choices"])))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [20] * 24


def test_api_keys(launch):
    engine = launch("--max-model-len=1024", "--api-key", "secret-key")
    engine.wait_ready()
    assert engine.get("/v1/models") == (401, '{"error":"Unauthorized"}')
    body = {"prompt": "x", "max_tokens": 1, "ignore_eos": True}
    assert engine.post("/v1/completions", body, {"Authorization": "Bearer wrong"})[0] == 401
    assert engine.post("/v1/completions", body, {"Authorization": "Bearer secret-key"})[0] == 200
    assert "secret-key" not in engine.log


def test_sigterm_ends_it_cleanly(launch):
    engine = launch("--max-model-len=1024")
    engine.wait_ready()
    engine.process.send_signal(signal.SIGTERM)
    assert engine.wait_exit(10) == 0
    assert "Application shutdown complete." in engine.log
