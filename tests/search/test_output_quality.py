"""A configuration that changes the output too much cannot win, whatever it carries."""

from __future__ import annotations

from dataclasses import replace

from autotune.engine.api import EngineKind
from autotune.search.identity import study_identity
from autotune.spec import QualityLimits
from autotune.store.result import AgreementDocument, Decision, QualityDocument, Role, TrialDocument

ITSELF = AgreementDocument(first_tokens=0.98, prefix=0.9, logprob_difference=0.004)


def quality(first: float) -> QualityDocument:
    found = AgreementDocument(first_tokens=first, prefix=0.8, logprob_difference=0.02)
    passed = first >= 0.9
    return QualityDocument(
        prompts=64, agreement=found, repeat=ITSELF, passed=passed, reason="" if passed else "first tokens"
    )


def figure(order) -> float:
    seqs = int(order.arguments.get("max-num-seqs", 256))
    return 900 * min(seqs, 32) / max(seqs, 32)


def with_quality(executor, agreement):
    """An executor whose trials agree with the default as ``agreement`` says of max-num-seqs; None: not checked."""

    class Asking(executor):
        async def run(self, order) -> TrialDocument:
            document = await super().run(order)
            first = agreement(int(order.arguments.get("max-num-seqs", 256)))
            return document.model_copy(update={"quality": None if first is None else quality(first)})

    return Asking(figure)


async def test_the_best_figure_with_another_output_is_not_named(bench, executor) -> None:
    bench.trials = 14
    asking = with_quality(executor, lambda seqs: 0.7 if 24 <= seqs <= 48 else None)
    run = bench.run(asking)
    result = await run.run()
    carried = {int(t.arguments.get("max-num-seqs", 256)): t.output_tokens_per_s for t in result.trials}
    assert max(carried, key=lambda seqs: carried[seqs]) in range(24, 49), "the sampler found it"
    best = result.best
    assert best is not None
    assert not 24 <= int(best.arguments["max-num-seqs"]) <= 48
    assert result.verdict.decision is Decision.TUNED
    assert "output differs too much" in result.verdict.text
    confirmed = {int(t.arguments.get("max-num-seqs", 256)) for t in result.trials if t.role is Role.CONFIRMATION}
    assert not confirmed & set(range(24, 49)), "no hours for what cannot win"
    changed = [t.number for t in result.trials if t.changes_output]
    assert changed
    assert {run.record.trials()[number].value for number in changed} == {0.0}
    # A dropped trial is one that cannot beat the best that may win.
    incumbents = [o.incumbent_rate for o in asking.orders if o.role is Role.SEARCH]
    assert max(rate for rate in incumbents if rate) < 900 / 256


async def test_a_finalist_that_fails_in_one_round_is_out(bench, executor) -> None:
    rounds: list[int] = []

    class Once(executor):
        async def run(self, order) -> TrialDocument:
            document = await super().run(order)
            if int(order.arguments.get("max-num-seqs", 256)) != best_seqs[0]:
                return document
            rounds.append(order.number)
            return document.model_copy(update={"quality": quality(0.7 if order.block == 1 else 0.95)})

    best_seqs = [0]
    plain = await replace(bench, folder=bench.folder / "plain").run(executor(figure)).run()
    assert plain.best is not None
    best_seqs[0] = int(plain.best.arguments["max-num-seqs"])
    result = await replace(bench, folder=bench.folder / "checked").run(Once(figure)).run()
    assert rounds
    assert result.best is None or int(result.best.arguments.get("max-num-seqs", 256)) != best_seqs[0]


async def test_the_winner_s_agreement_is_the_least_that_was_seen(bench, executor) -> None:
    result = await bench.run(with_quality(executor, lambda seqs: None if seqs == 256 else 0.96)).run()
    assert result.best is not None
    assert result.best.quality is not None
    assert result.best.quality.agreement is not None
    assert result.best.quality.agreement.first_tokens == 0.96
    assert "64 prompts" in result.best.quality.text


async def test_only_the_default_is_the_reference(bench, executor) -> None:
    ran = executor(figure)
    await bench.run(ran).run()
    assert {str(o.arguments) for o in ran.orders if o.is_reference} == {"{}"}


def test_limits_that_go_without_saying_do_not_change_a_study_s_identity(bench, executor) -> None:
    context = bench.run(executor(figure)).context
    identity = study_identity(context.spec, context.space, EngineKind.SIMULATED)
    assert "quality" not in identity
    assert "reuse" not in identity
    stricter = context.spec.model_copy(update={"quality": QualityLimits(first_tokens=0.99)})
    assert study_identity(stricter, context.space, EngineKind.SIMULATED)["quality"]["first_tokens"] == 0.99
