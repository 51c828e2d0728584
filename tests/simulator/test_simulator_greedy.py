"""Greedy answers of the simulated engine: repeatable, a distribution, and a little different in other formats."""

from __future__ import annotations

import math

import pytest

from autotune.simulator.greedy import TopTokens, greedy_answer

PROMPTS = [[number, 7, 11 * number % 997] for number in range(400)]
VOCABULARY = 1000


def answer(prompt: list[int], quantization: str | None = None, kv_dtype: str = "auto") -> list[TopTokens]:
    return greedy_answer(prompt, 32, VOCABULARY, quantization=quantization, kv_dtype=kv_dtype)


def tokens(positions: list[TopTokens]) -> list[int]:
    return [next(iter(top)) for top in positions]


def share_changed(quantization: str | None, kv_dtype: str) -> float:
    """Share of answers of 32 tokens that are not those of the plain formats."""
    return sum(tokens(answer(p)) != tokens(answer(p, quantization, kv_dtype)) for p in PROMPTS) / len(PROMPTS)


def test_the_same_prompt_gives_the_same_answer_and_another_one_another() -> None:
    assert answer([1, 2, 3]) == answer([1, 2, 3])
    assert tokens(answer([1, 2, 3])) != tokens(answer([1, 2, 4]))


def test_the_first_token_is_the_likelier_one_and_the_probabilities_add_up() -> None:
    for top in answer([5]):
        first, second = top.values()
        assert first >= second
        assert math.exp(first) + math.exp(second) == pytest.approx(1.0)
        assert all(0 <= token < VOCABULARY for token in top)


def test_fewer_bits_change_more_answers() -> None:
    shares = [
        share_changed(None, "auto"),
        share_changed(None, "fp8"),
        share_changed("fp8", "auto"),
        share_changed("awq", "auto"),
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.02 < shares[1] < 0.3
    assert 0.3 < shares[3] < 0.95


def test_the_share_of_changed_tokens_is_what_the_gaps_and_the_error_say() -> None:
    # An exponential gap of mean 2, a normal error of deviation s: P(error < -gap) is nearly s / (2 sqrt(2 pi)).
    first = sum(tokens(answer(p))[0] != tokens(answer(p, "awq"))[0] for p in PROMPTS) / len(PROMPTS)
    assert first == pytest.approx(0.2 / (2 * math.sqrt(2 * math.pi)), abs=0.03)
