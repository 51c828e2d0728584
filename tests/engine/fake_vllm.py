"""A stand-in for ``vllm``: prints a log, may fork a stubborn child, serves the few endpoints, ends as it is told.

Behaviour comes as JSON in FAKE_VLLM: ``log`` (a file printed at the start), ``exit`` (code, before serving), ``child``
(``session``: stays in the session, ``stray``: makes its own; both ignore SIGTERM), ``ready_after`` (seconds), ``bind``
(false: never listens), ``spawn`` (starts a worker that exits with this code), ``die_after`` (requests, then exit with
``die_code``), ``ignore_term``, ``print`` (a line), ``print_environment`` (a variable to print).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    behaviour = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    if "--version" in sys.argv:
        say("0.99.0")
        return
    parser = argparse.ArgumentParser(prog="vllm serve")
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    arguments = parser.parse_args()
    if behaviour.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "log" in behaviour:
        say(Path(behaviour["log"]).read_text(encoding="utf-8"))
    say(behaviour.get("print", "INFO 11-30 12:00:00 [api_server.py:1] vLLM API server version 0.99.0"))
    if "print_environment" in behaviour:
        name = behaviour["print_environment"]
        say(f"{name}={os.environ.get(name)}")
    if "child" in behaviour and os.fork() == 0:
        stubborn(stray=behaviour["child"] == "stray")
    if "spawn" in behaviour:
        os.environ["SET_AFTER_THE_START"] = "yes"
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(behaviour["spawn"],), daemon=True)
        worker.start()
        worker.join()
        say(f"the worker ended with {worker.exitcode}")
    if "exit" in behaviour:
        sys.exit(behaviour["exit"])
    time.sleep(behaviour.get("ready_after", 0.0))
    if not behaviour.get("bind", True):
        time.sleep(3600)
    serve(arguments, behaviour)


def work(code: int) -> None:
    say(f"worker {os.getpid()} of session {os.getsid(0)} sees {os.environ.get('SET_AFTER_THE_START')}")
    say(f"preloaded: {'torch' in sys.modules}")
    sys.exit(code)


def stubborn(*, stray: bool) -> None:
    if stray:
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
    os._exit(0)


def serve(arguments: argparse.Namespace, behaviour: dict[str, object]) -> None:
    seen = 0

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path.startswith("/v1/models"):
                self.answer(200, {"data": [{"id": arguments.served_model_name}]})
            elif self.path.startswith("/server_info"):
                scheduler = {"max_num_seqs": arguments.max_num_seqs, "max_num_batched_tokens": 2048}
                self.answer(200, {"vllm_config": {"scheduler_config": scheduler}})
            else:
                self.answer(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            nonlocal seen
            seen += 1
            if "die_after" in behaviour and seen >= int(str(behaviour["die_after"])):
                say(behaviour.get("last_words", ""))
                os._exit(int(str(behaviour.get("die_code", 0))))
            self.answer(200, {"success": seen > 1})

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    if not behaviour.get("ignore_term"):
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    say("INFO:     Application startup complete.")
    server.serve_forever(poll_interval=0.02)


if __name__ == "__main__":
    main()
