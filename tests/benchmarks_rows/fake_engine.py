"""A server that behaves like vLLM as far as the measuring of rows goes, from the standard library alone.

Run as ``python fake_engine.py serve MODEL --port N ...``. It writes the start-up lines of vLLM 0.24 and streams one
token every few milliseconds.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOG = """\
INFO 11-30 17:00:00 [utils.py:233] non-default args: {'model': 'fake'}
INFO 11-30 17:00:01 [core.py:93] Initializing a V1 LLM engine (v0.24.0) with config: model='fake'
INFO 11-30 17:00:02 [gpu_model_runner.py:3338] Model loading took 7.56 GiB memory and 1.618596 seconds
INFO 11-30 17:00:03 [gpu_worker.py:375] Available KV cache memory: 119.89 GiB
INFO 11-30 17:00:03 [kv_cache_utils.py:1291] GPU KV cache size: 873,008 tokens
INFO 11-30 17:00:04 [core.py:259] init engine (profile, create kv cache, warmup model) took 2.85 seconds
"""
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="fake"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="fake"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="fake"}} 0.25
vllm:num_preemptions_total{{engine="0",model_name="fake"}} 0.0
vllm:generation_tokens_total{{engine="0",model_name="fake"}} {tokens}
"""
TOKEN_S = 0.004


class Counters:
    """What ``/metrics`` tells."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.tokens = 0

    def add(self, *, running: int = 0, tokens: int = 0) -> None:
        """Count."""
        with self.lock:
            self.running += running
            self.tokens += tokens


COUNTERS = Counters()


class Handler(BaseHTTPRequestHandler):
    """The endpoints that a row needs."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Health, version, metrics."""
        bodies = {
            "/health": "",
            "/version": json.dumps({"version": "0.24.0"}),
            "/metrics": METRICS.format(running=COUNTERS.running, tokens=COUNTERS.tokens),
        }
        self.answer(bodies[self.path].encode())

    def do_POST(self) -> None:
        """A completion, or the reset of the prefix cache."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache":
            self.answer(b"")
            return
        request = json.loads(body)
        assert request["stream"]
        assert request["ignore_eos"]
        COUNTERS.add(running=1)
        try:
            self.stream(len(request["prompt"]), request["max_tokens"])
        except OSError:
            self.close_connection = True
        finally:
            COUNTERS.add(running=-1)

    def answer(self, body: bytes) -> None:
        """A whole answer."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, prompt: int, output: int) -> None:
        """Tokens one by one, the usage, and the end."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(output):
            time.sleep(TOKEN_S)
            COUNTERS.add(tokens=1)
            self.event(json.dumps({"choices": [{"text": f" w{index}"}]}))
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data: str) -> None:
        """One server-sent event in a chunk of its own."""
        text = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def main() -> None:
    """Serve until killed."""
    sys.stdout.write(LOG)
    sys.stdout.flush()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
