"""The quality check: what agreement means, which limit decides, and that the reference is asked once and kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autotune.spec import QualityLimits, Workload
from autotune.store.result import AgreementDocument, QualityDocument, Role
from autotune.trial.order import TrialOrder
from autotune.trial.quality import ANSWER_TOKENS, FEWEST_PROMPTS, Answer, QualityCheck, ask, compare, judged
from autotune.trial.quality_prompts import COUNT, quality_prompts

LIMITS = QualityLimits()
ITSELF = AgreementDocument(first_tokens=1.0, prefix=1.0, logprob_difference=0.0)
PROMPTS = [f"prompt {number}" for number in range(20)]


def answer(text: str, logprob: float = -0.5, **others: float) -> Answer:
    """One token a letter, all with the same log-probability, and the alternatives of each position."""
    return Answer(tuple(text), tuple({letter: logprob, **others} for letter in text))


def test_equal_answers_agree_in_everything() -> None:
    assert compare([answer("abcd")] * 3, [answer("abcd")] * 3) == (3, ITSELF)


def test_agreement_is_counted_up_to_the_first_token_that_differs() -> None:
    # One answer differs at once, one after half of it, one not at all.
    prompts, found = compare(
        [answer("abcd"), answer("abcd"), answer("abcd")], [answer("xbcd"), answer("abxd"), answer("abcd")]
    )
    assert prompts == 3
    assert found is not None
    assert found.first_tokens == pytest.approx(2 / 3)
    assert found.prefix == pytest.approx((0 + 0.5 + 1) / 3)


def test_log_probabilities_are_compared_on_what_both_wrote_and_where_they_part() -> None:
    # The prefix "ab" at -0.5 against -0.7, then "c" (-0.5) lost against "x" and has -1.5 there: 0.2, 0.2 and 1.0.
    _, found = compare([answer("abcd")], [answer("abxd", -0.7, c=-1.5)])
    assert found is not None
    assert found.logprob_difference == pytest.approx((0.2 + 0.2 + 1.0) / 3)
    _, unknown = compare([answer("abcd")], [answer("xbcd", -0.7)])
    assert unknown is not None
    assert unknown.logprob_difference is None


def test_prompts_that_one_of_them_refused_are_left_out() -> None:
    assert compare([answer("ab"), None, answer("ab")], [answer("ab"), answer("ab"), None])[0] == 1
    assert compare([None], [answer("ab")]) == (0, None)


@pytest.mark.parametrize(
    ("first", "difference", "repeat", "broken"),
    [
        (0.95, 0.05, ITSELF, ""),
        (0.89, 0.05, ITSELF, "first tokens"),
        (0.95, 0.11, ITSELF, "log-probabilities"),
        (0.95, None, ITSELF, "log-probabilities"),
        # The reference itself repeats 90 % of its first tokens: 90 % of those are enough, 80 % are not.
        (0.82, 0.05, AgreementDocument(first_tokens=0.9, prefix=0.9, logprob_difference=0.03), ""),
        (0.80, 0.05, AgreementDocument(first_tokens=0.9, prefix=0.9, logprob_difference=0.03), "first tokens"),
        (0.95, 0.12, AgreementDocument(first_tokens=0.9, prefix=0.9, logprob_difference=0.03), ""),
    ],
)
def test_limits_are_relative_to_how_well_the_reference_repeats_itself(first, difference, repeat, broken) -> None:
    found = AgreementDocument(first_tokens=first, prefix=0.8, logprob_difference=difference)
    quality = judged(QualityDocument(prompts=64, agreement=found, repeat=repeat), LIMITS)
    assert broken in quality.reason
    assert bool(quality.reason) == bool(broken)
    assert quality.passed is not bool(broken)


def test_a_few_prompts_decide_nothing() -> None:
    def passed(prompts: int) -> bool | None:
        return judged(QualityDocument(prompts=prompts, agreement=ITSELF, repeat=ITSELF), LIMITS).passed

    assert passed(FEWEST_PROMPTS) is True
    assert passed(FEWEST_PROMPTS - 1) is False


def test_prompts_are_fixed_and_as_long_as_the_workload_s() -> None:
    workload = Workload.model_validate({"input_tokens": "600:900", "output_tokens": 64})
    prompts = quality_prompts(workload)
    assert len(prompts) == len(set(prompts)) == COUNT
    assert prompts == quality_prompts(workload)
    words = [len(prompt.split()) for prompt in prompts]
    # English has some 0.75 words a token.
    assert min(words[30:]) > 0.75 * 600 * 0.5
    assert max(words) < 900


def test_a_dataset_s_own_prompts_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(5)))
    workload = Workload.model_validate({"input_tokens": 5, "output_tokens": 5, "dataset": {"path": str(path)}})
    asked = quality_prompts(workload)[30:]
    assert {text.rstrip("0123456789") for text in asked} == {"question "}


class Server:
    """Answers completions by a function of the prompt; counts them and the most at once."""

    def __init__(self, write: Callable[[str], str | None]) -> None:
        self.write = write
        self.asked: list[dict[str, object]] = []
        self.resets = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(body)
                text = server.write(body["prompt"])
                tokens = list(text or "")
                logprobs = {"tokens": tokens, "top_logprobs": [{token: -0.5} for token in tokens]}
                reply = {"choices": [{"logprobs": logprobs}]} if text else {"error": {"message": "too long"}}
                data = json.dumps(reply).encode()
                self.send_response(200 if text else 400)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.served_model = "m"

    async def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return True


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(write: Callable[[str], str | None]) -> Server:
        server = Server(write)
        threading.Thread(target=server.http.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def order(**changes: object) -> TrialOrder:
    fields = {"number": 1, "role": Role.SEARCH, "arguments": {"kv-cache-dtype": "fp8"}, "folder": Path("none")}
    return TrialOrder(**{**fields, **changes})


async def test_an_engine_is_asked_greedily_for_log_probabilities_of_every_prompt_in_order(serve) -> None:
    server = serve(lambda prompt: prompt[-1] * 3)
    found = await ask(server, PROMPTS, 4)
    assert [a.tokens for a in found] == [tuple(prompt[-1] * 3) for prompt in PROMPTS]
    body = server.asked[0]
    assert (body["temperature"], body["max_tokens"], body["ignore_eos"]) == (0, ANSWER_TOKENS, True)
    assert body["model"] == "m"
    assert isinstance(body["logprobs"], int)


async def test_the_reference_is_asked_twice_and_kept_and_others_are_compared_with_it(serve, tmp_path) -> None:
    check = QualityCheck(PROMPTS, LIMITS, frozenset({"kv-cache-dtype"}), tmp_path / "reference.json")
    default = serve(lambda prompt: "abcd")
    unchecked = await check.examine(order(), default)
    assert unchecked.passed is None
    assert "not checked" in unchecked.reason

    reference = await check.examine(order(arguments={}, is_reference=True), default)
    assert (reference.passed, reference.prompts, reference.repeat) == (True, 20, ITSELF)
    assert (len(default.asked), default.resets) == (40, 1)
    assert await check.examine(order(arguments={}, is_reference=True), default) is None
    assert await check.examine(order(arguments={"max-num-seqs": 8}), default) is None
    assert len(default.asked) == 40

    same = await check.examine(order(), serve(lambda prompt: "abcd"))
    assert (same.passed, same.reason) == (True, "")
    other = await check.examine(order(), serve(lambda prompt: "xbcd" if prompt.endswith(("7", "8")) else "abcd"))
    assert other.passed is False
    assert other.agreement.first_tokens == pytest.approx(16 / 20)
    assert "80.0%" in other.reason
    refusing = await check.examine(order(), serve(lambda prompt: None))
    assert (refusing.passed, refusing.prompts) == (False, 0)


async def test_answers_to_other_prompts_are_no_reference(serve, tmp_path) -> None:
    path = tmp_path / "reference.json"
    server = serve(lambda prompt: "abcd")
    lossy = frozenset({"kv-cache-dtype"})
    await QualityCheck(PROMPTS, LIMITS, lossy, path).examine(order(arguments={}, is_reference=True), server)
    changed = QualityCheck([*PROMPTS, "one more"], LIMITS, lossy, path)
    found = await changed.examine(order(), server)
    assert found.passed is None


async def test_a_reference_that_answers_too_little_is_not_kept(serve, tmp_path) -> None:
    path = tmp_path / "reference.json"
    check = QualityCheck(PROMPTS, LIMITS, frozenset({"kv-cache-dtype"}), path)
    found = await check.examine(
        order(arguments={}, is_reference=True), serve(lambda prompt: "abcd" if prompt.endswith("1") else None)
    )
    assert (found.passed, found.prompts) == (None, 2)
    assert not path.exists()
