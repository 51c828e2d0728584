"""A server that sends known tokens and records when it did: the truth that the load generator is held to.

Standard library only, one process, run as a script: ``python golden_server.py --first 0.05 --gap 0.01``. It
prints its port, answers until its standard input closes, and gives its record at ``GET /record``:
``[[arrived, [sent, ...], ended, prompt_tokens, output_tokens, first token ids], ...]`` in ``time.monotonic``
seconds, which all processes of a machine share. ``POST /reset`` empties the record. The model's name chooses faults.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import random
import sys
import time

FAULTS = ("status-500", "status-401", "hang", "drop", "error", "abort", "no-usage", "lone-done", "json", "garbage")
_WORDS = (" the", " quick", " brown", "\\n", " fox", " caf\u00e9", " =", " {", "\\u4e2d", ".")


class Stream:
    """One answer that is being sent."""

    def __init__(self, server: GoldenServer, transport: asyncio.Transport, body: dict, chat: bool) -> None:
        self.server, self.transport, self.chat = server, transport, chat
        self.model = str(body.get("model"))
        self.arrived = time.monotonic()
        self.times: list[float] = []
        self.tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        prompt = body.get("prompt")
        self.key = prompt[:4] if isinstance(prompt, list) else []
        self.prompt_tokens = len(prompt) if isinstance(prompt, list) else len(json.dumps(body.get("messages", prompt)))
        choice = '"delta":{"content":"%s"}' if chat else '"text":"%s"'
        kind = "chat.completion.chunk" if chat else "text_completion"
        self.shape = (
            f'data: {{"id":"cmpl-{id(self):x}","object":"{kind}","created":1772423572,"model":"{self.model}",'
            f'"choices":[{{"index":0,{choice},"logprobs":null,"finish_reason":%s}}]%s}}\n\n'
        )
        self.plain = [self._frame(self.shape % (word, "null", "")) for word in _WORDS]
        rng = random.Random(server.seed + len(server.record))
        spread = server.args.spread
        self.gaps = [server.args.gap * (1 - spread + 2 * spread * rng.random()) for _ in range(16)]
        self.due = self.arrived + server.args.first * (1 - spread + 2 * spread * rng.random())

    @staticmethod
    def _frame(event: str) -> bytes:
        data = event.encode()
        return b"%x\r\n%s\r\n" % (len(data), data)

    def head(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            + (
                self._frame(
                    self.shape.replace('"content":"%s"', '"role":"assistant","content":"%s"') % ("", "null", "")
                )
                if self.chat
                else b""
            )
        )

    def tick(self, now: float) -> bool:
        """Send the next token; False when the answer is over."""
        sent = len(self.times)
        if self.model == "drop" and sent == 2:
            self.transport.abort()
            return False
        if self.model == "error" and sent == 2:
            self._end(self._frame('data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'))
            return False
        if self.model == "garbage" and sent == 2:
            self._end(self._frame("data: : OPENROUTER PROCESSING\n\n"))
            return False
        last = sent + 1 >= self.tokens or (self.model == "abort" and sent == 2)
        if not last:
            self.transport.write(self.plain[sent % len(_WORDS)])
            self.times.append(now)
            self.due += self.gaps[sent % 16]
            return True
        reason = '"abort"' if self.model == "abort" else '"length"'
        tail = self._frame(self.shape % ("end", reason, ""))
        if self.model not in ("abort", "no-usage"):
            usage = (
                f',"usage":{{"prompt_tokens":{self.prompt_tokens},"total_tokens":{self.prompt_tokens + self.tokens},'
                f'"completion_tokens":{self.tokens}}}'
            )
            tail += self._frame(f'data: {{"id":"x","object":"x","model":"{self.model}","choices":[]{usage}}}\n\n')
        self.times.append(now)
        self._end(tail)
        return False

    def _end(self, tail: bytes) -> None:
        self.transport.write(tail + self._frame("data: [DONE]\n\n") + b"0\r\n\r\n")
        self.server.record.append(
            [self.arrived, self.times, time.monotonic(), self.prompt_tokens, self.tokens, self.key]
        )


class GoldenServer:
    """All streams, sent from one heap of due times."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.seed = args.seed
        self.record: list[list] = []
        self.heap: list[tuple[float, int, Stream]] = []
        self.handle: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()

    def add(self, stream: Stream) -> None:
        stream.head()
        heapq.heappush(self.heap, (stream.due, id(stream), stream))
        self.arm()

    def arm(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
        self.handle = self.loop.call_at(self.heap[0][0], self.tick) if self.heap else None

    def tick(self) -> None:
        self.handle = None
        heap = self.heap
        now = time.monotonic()
        while heap and heap[0][0] <= now:
            stream = heap[0][2]
            if not stream.transport.is_closing() and stream.tick(time.monotonic()):
                heapq.heapreplace(heap, (stream.due, id(stream), stream))
            else:
                heapq.heappop(heap)
        self.arm()


class Connection(asyncio.Protocol):
    """Just enough HTTP to be called by our clients and others."""

    def __init__(self, server: GoldenServer) -> None:
        self.server = server
        self.buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].decode("latin-1")
            length, self.key = 0, ""
            for line in head.split("\r\n")[1:]:
                name, _, value = line.partition(":")
                if name.lower() == "content-length":
                    length = int(value)
                elif name.lower() == "authorization":
                    self.key = value.strip()
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.handle(*head.split(" ")[:2], body)

    def handle(self, method: str, path: str, body: bytes) -> None:
        server = self.server
        if self.key and self.key != "Bearer right":
            self.reply(401, {"error": {"message": "Incorrect API key", "code": 401}})
            return
        if method == "GET" and path == "/record":
            self.reply(200, server.record)
        elif method == "POST" and path == "/reset":
            server.record.clear()
            self.reply(200, {})
        elif method == "GET" and path in ("/health", "/metrics"):
            self.reply(200, {})
        elif method == "GET" and path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": server.args.model, "object": "model"}]})
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self.generate(path, json.loads(body))
        else:
            self.reply(404, {"detail": "Not Found"})

    def generate(self, path: str, body: dict) -> None:
        model = str(body.get("model"))
        if model.startswith("status-"):
            self.reply(int(model[7:]), {"error": {"message": f"the server says {model}", "code": int(model[7:])}})
        elif model == "json":
            self.reply(200, {"choices": [{"text": "not streamed"}]})
        elif model == "lone-done":
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
            )
        elif model == "hang":
            pass
        elif model != self.server.args.model and model not in FAULTS:
            self.reply(404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}})
        else:
            self.server.add(Stream(self.server, self.transport, body, "chat" in path))

    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    golden = GoldenServer(args)
    server = await loop.create_server(lambda: Connection(golden), "127.0.0.1", args.port, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="golden")
    parser.add_argument("--first", type=float, default=0.05, help="mean seconds to the first token")
    parser.add_argument("--gap", type=float, default=0.01, help="mean seconds between tokens")
    parser.add_argument("--spread", type=float, default=0.5, help="half width of the uniform spread, as a share")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
