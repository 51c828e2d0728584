"""The quality check: does a configuration that may change the model's output still answer like the reference?

Fixed prompts, greedy, compared token by token with the answers of the default configuration. Greedy decoding is not
perfectly repeatable: a batch of another size rounds differently. So the reference is asked twice, with another number
of requests at once, and a configuration is held against how well the reference agrees with itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from autotune.base.files import write_atomically
from autotune.engine.api import RunningEngine
from autotune.spec import QualityLimits
from autotune.store.result import AgreementDocument, QualityDocument
from autotune.trial.order import TrialOrder

ANSWER_TOKENS = 32
AT_ONCE, AT_ONCE_AGAIN = 8, 2
"""Requests at once, and when the reference is asked the second time."""
FEWEST_PROMPTS = 16
"""Below this many answers nothing is said."""
_ALTERNATIVES = 5
"""Tokens whose log-probability is told at each position, so that the reference's is known where another one won."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer: its tokens, and the log-probabilities of the best tokens at each position."""

    tokens: tuple[str, ...]
    logprobs: tuple[Mapping[str, float], ...]


Answers = Sequence[Answer | None]
"""By prompt; None where the engine refused it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the default configuration answered, and how well it agrees with itself."""

    digest: str
    """Of the prompts."""
    answers: tuple[Answer | None, ...]
    repeat: AgreementDocument


_REFERENCE = TypeAdapter(Reference)


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """Asks the engines of a study; the reference's answers are kept in a file, so that a resumed study has them."""

    prompts: Sequence[str]
    limits: QualityLimits
    lossy: frozenset[str]
    """Engine arguments that may change the output."""
    path: Path

    async def examine(self, order: TrialOrder, running: RunningEngine) -> QualityDocument | None:
        """Ask a running engine; None where its configuration cannot change the output."""
        known = self._read()
        if order.is_reference:
            return await self._learn_reference(running) if known is None else None
        if not self.lossy & order.arguments.keys():
            return None
        if known is None:
            reason = "not checked: there are no answers of the default configuration to compare with"
            return QualityDocument(reason=reason)
        answers = await ask(running, self.prompts, AT_ONCE)
        prompts, agreement = compare(known.answers, answers)
        return judged(QualityDocument(prompts=prompts, agreement=agreement, repeat=known.repeat), self.limits)

    async def _learn_reference(self, running: RunningEngine) -> QualityDocument:
        answers = await ask(running, self.prompts, AT_ONCE)
        await running.reset_prefix_cache()
        prompts, repeat = compare(answers, await ask(running, self.prompts, AT_ONCE_AGAIN))
        if repeat is None or prompts < FEWEST_PROMPTS:
            return QualityDocument(
                prompts=prompts, reason=f"only {prompts} of {len(self.prompts)} prompts were answered"
            )
        found = Reference(self._digest(), tuple(answers), repeat)
        write_atomically(self.path, json.dumps(asdict(found) | {"repeat": repeat.model_dump()}) + "\n")
        return QualityDocument(prompts=prompts, agreement=repeat, repeat=repeat, passed=True)

    def _read(self) -> Reference | None:
        try:
            found = _REFERENCE.validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.digest == self._digest() else None

    def _digest(self) -> str:
        return hashlib.sha256(json.dumps([ANSWER_TOKENS, *self.prompts]).encode()).hexdigest()[:16]


def judged(quality: QualityDocument, limits: QualityLimits) -> QualityDocument:
    """The same comparison, passed or not by these limits."""
    if quality.repeat is None:
        return quality
    reason = _broken_limit(quality.prompts, quality.agreement, quality.repeat, limits)
    return quality.model_copy(update={"passed": not reason, "reason": reason})


def _broken_limit(
    prompts: int, agreement: AgreementDocument | None, repeat: AgreementDocument, limits: QualityLimits
) -> str:
    if agreement is None or prompts < FEWEST_PROMPTS:
        return f"{prompts} of the prompts were answered, at least {FEWEST_PROMPTS} are needed"
    least = limits.first_tokens * repeat.first_tokens
    if agreement.first_tokens < least:
        return f"first tokens agree for {agreement.first_tokens:.1%} of the prompts, at least {least:.1%} are needed"
    most = limits.logprob_difference + (repeat.logprob_difference or 0.0)
    if agreement.logprob_difference is None or agreement.logprob_difference > most:
        found = "unknown" if agreement.logprob_difference is None else f"{agreement.logprob_difference:.3f}"
        return f"mean difference of the log-probabilities is {found}, at most {most:.3f} is allowed"
    return ""


def compare(reference: Answers, other: Answers) -> tuple[int, AgreementDocument | None]:
    """How many prompts both answered, and how far the answers agree; None where there is none."""
    pairs = [(a, b) for a, b in zip(reference, other, strict=True) if a is not None and b is not None and a.tokens]
    if not pairs:
        return 0, None
    common = [_common_length(a.tokens, b.tokens) for a, b in pairs]
    differences = [
        abs(a.logprobs[at][a.tokens[at]] - b.logprobs[at][a.tokens[at]])
        for (a, b), length in zip(pairs, common, strict=True)
        for at in range(min(length + 1, len(a.tokens), len(b.tokens)))
        if a.tokens[at] in b.logprobs[at]
    ]
    return len(pairs), AgreementDocument(
        first_tokens=statistics.fmean(length > 0 for length in common),
        prefix=statistics.fmean(length / len(a.tokens) for length, (a, _) in zip(common, pairs, strict=True)),
        logprob_difference=statistics.fmean(differences) if differences else None,
    )


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def ask(running: RunningEngine, prompts: Sequence[str], at_once: int) -> list[Answer | None]:
    """The greedy answers of a running engine, a few requests at once."""
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=running.url, timeout=_TIMEOUT_S, trust_env=False) as client:

        async def one(prompt: str) -> Answer | None:
            async with gate:
                return await _answer(client, running.served_model, prompt)

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


async def _answer(client: httpx.AsyncClient, model: str, prompt: str) -> Answer | None:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": _ALTERNATIVES,
        "return_tokens_as_token_ids": True,
    }
    try:
        response = await client.post("/v1/completions", json=body)
        found = response.json()["choices"][0]["logprobs"]
        return Answer(tuple(found["tokens"]), tuple(found["top_logprobs"]))
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None
