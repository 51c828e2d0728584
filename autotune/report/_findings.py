"""Sections of the report that say what was found: verdict, winner, comparison, confirmation, explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.report import figures, words
from autotune.report._html import Html, tag
from autotune.report._parts import Cell, facts, flags, glued, number_cell, section, serve_command, table, text_cell
from autotune.report.comparison import Row, comparison, confirmation
from autotune.report.importance import importances
from autotune.report.limits import explain_limit
from autotune.report.lookup import Standing, configuration_key, yardstick
from autotune.search.objective import aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import BestDocument, Decision, Outcome, Role, StudyDocument, TrialDocument


def verdict_box(document: StudyDocument) -> Html:
    """The conclusion, first of all."""
    notice = words.simulated_notice(document)
    return tag(
        "div",
        tag("p", notice, class_="notice", role="note") if notice else None,
        tag(
            "section",
            tag("h2", words.verdict_title(document), id="verdict-title"),
            tag("p", glued(words.verdict_sentence(document)), class_="sentence"),
            tag("p", document.verdict.text) if document.verdict.text else None,
            _cards(document),
            class_=f"verdict {document.verdict.decision}",
            aria_labelledby="verdict-title",
        ),
    )


def _cards(document: StudyDocument) -> Html | None:
    best = document.best
    if best is None:
        return None
    label = ", simulated" if document.simulated else ""
    cards = [
        ("Output" + label, figures.tokens_per_second(best.output_tokens_per_s), _total_words(best)),
        (
            "P99 latency" + label,
            figures.seconds(best.p99_latency_s),
            f"P50 {figures.seconds(best.p50_latency_s)}; {best.requests:,} requests",
        ),
        ("P99 TTFT" + label, figures.seconds(best.p99_ttft_s), "time to the first token"),
        ("P99 TPOT" + label, figures.seconds(best.p99_tpot_s), "per further token"),
    ]
    if best.capacity_rps is not None:
        cards.insert(0, ("Capacity" + label, figures.rate(best.capacity_rps), _default_words(document)))
    cards = [*_sought_cards(document, best, label), *cards]
    if document.verdict.gain_percent is not None:
        bounds = figures.interval(document.verdict.interval_95, "%", signed=True)
        gain = figures.percent(document.verdict.gain_percent, signed=True)
        measure = yardstick(document)
        tuned = f"{'Reduction of' if measure.smaller_is_better else 'Gain in'} {measure.title}"
        name = tuned if document.verdict.decision is Decision.TUNED else "Best challenger's gain"
        cards.insert(0, (name + label, gain, f"95 % interval {bounds}" if bounds else "no interval"))
    return tag(
        "dl",
        (
            tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else None))
            for name, value, note in cards
        ),
        class_="cards",
    )


def _sought_cards(document: StudyDocument, best: BestDocument, label: str) -> Iterator[tuple[str, str, str]]:
    """What the study seeks beside the throughput."""
    for figure in aim_of_result(document).beside_output:
        where = f"at {figures.rate(best.light_rps)}" if best.light_rps is not None else words.load_words(document)
        shown = figures.quantity(figure.of(best), figure.unit)
        yield (f"Sought: {figure.title}{label}", shown, where)


def _default_words(document: StudyDocument) -> str:
    capacity = document.verdict.default_capacity_rps
    return f"{words.default_name(document)}: {figures.rate(capacity)}" if capacity is not None else ""


def _total_words(best: BestDocument) -> str:
    return f"with input {figures.tokens_per_second(best.total_tokens_per_s)}" if best.total_tokens_per_s else ""


def winner_section(document: StudyDocument) -> Html | None:
    """How to start the winner."""
    best = document.best
    if best is None:
        return None
    command = serve_command(document.model_source, best.arguments, best.environment)
    title = "Start it" if document.verdict.decision is Decision.TUNED else "Start the best so far"
    if document.verdict.decision is Decision.KEEP_DEFAULT:
        title = "Start the default"
    return section(
        "winner",
        title,
        tag(
            "div",
            tag("pre", tag("code", command, id="command")),
            tag("button", "Copy", type="button", data_copy="command", hidden=True),
            class_="command",
        ),
        tag(
            "p",
            "The same configuration is in ",
            tag("code", "best.yaml"),
            " beside this report: ",
            tag("code", "vllm serve --config best.yaml"),
            ". Other forms: ",
            tag("code", f"autotune export {document.study} --format compose"),
            ".",
        ),
    )


_COMPARISON_HEADS = (
    ("configuration", False),
    ("capacity, req/s", True),
    ("gain", True),
    ("output tok/s", True),
    ("total tok/s", True),
    ("P50 latency", True),
    ("P99 latency", True),
    ("P99 TTFT", True),
    ("P99 TPOT", True),
    ("rests on", False),
)


def comparison_section(document: StudyDocument) -> Html:
    """Default, modes and winner side by side."""
    rows = comparison(document)
    gain = f"{aim_of_result(document).score.gain_heading}, against default"
    heads = [(gain if name == "gain" else name, numeric) for name, numeric in _COMPARISON_HEADS]
    caption = f"Each at the load that it carries with {words.objective_words(document)}"
    if document.simulated:
        caption += "; SIMULATED"
    return section(
        "comparison",
        "Against vLLM's own settings",
        table(caption, heads, (({"class_": row.standing.value}, _comparison_cells(row)) for row in rows)),
        tag(
            "p",
            "Output and total tokens (input and output) are counted apart: a figure that does not say which it counts"
            " can be several times too large.",
        ),
    )


def _comparison_cells(row: Row) -> list[Cell]:
    name = [row.label, tag("small", flags(row.arguments))]
    if row.outcome is not Outcome.MEASURED:
        blank = [number_cell(None) for _ in range(8)]
        return [text_cell(name), *blank, text_cell(f"{row.outcome.value}: {words.cause_words(row.reason)}")]
    return [
        text_cell(name),
        number_cell(row.capacity_rps),
        number_cell(row.gain_percent, figures.percent(row.gain_percent, signed=True)),
        number_cell(row.output_tokens_per_s),
        number_cell(row.total_tokens_per_s),
        number_cell(row.p50_latency_s, figures.seconds(row.p50_latency_s)),
        number_cell(row.p99_latency_s, figures.seconds(row.p99_latency_s)),
        number_cell(row.p99_ttft_s, figures.seconds(row.p99_ttft_s)),
        number_cell(row.p99_tpot_s, figures.seconds(row.p99_tpot_s)),
        text_cell([row.footing, tag("small", f"{row.requests:,} requests")]),
    ]


def confirmation_section(document: StudyDocument) -> Html | None:
    """Finalists and default measured again, round by round; what the winner's curse took."""
    configurations = confirmation(document)
    if not configurations:
        return None
    rounds = sorted({block for c in configurations for block, _ in c.values})
    measure = yardstick(document)
    unit = measure.unit
    heads = [("configuration", False), *((f"round {r + 1}, {unit}", True) for r in rounds), (f"mean, {unit}", True)]
    rows = []
    for configuration in configurations:
        by_round = dict(configuration.values)
        cells = [text_cell(configuration.label), *(number_cell(by_round.get(r)) for r in rounds)]
        cells.append(number_cell(configuration.mean))
        cells.append(number_cell(float(configuration.requests), f"{configuration.requests:,}"))
        rows.append(({"class_": configuration.standing.value}, cells))
    heads.append(("requests", True))
    caption = f"{measure.title.capitalize()} of each round, on fresh engines, in interleaved order, with unseen prompts"
    return section(
        "confirmation",
        "Confirmation",
        table(caption + ("; SIMULATED" if document.simulated else ""), heads, rows),
        tag("ul", (tag("li", sentence) for sentence in _confirmation_sentences(document))),
    )


def _confirmation_sentences(document: StudyDocument) -> Iterator[str]:
    verdict = document.verdict
    if verdict.winners_curse_percent is not None:
        side = "above" if verdict.winners_curse_percent >= 0 else "below"
        yield (
            "Winner's curse: the search's figure for the winner was"
            f" {figures.percent(abs(verdict.winners_curse_percent))} {side} its confirmed one."
            " The best of many noisy figures is too good on average, so the confirmed one is reported."
        )
    if verdict.noise_percent is not None:
        yield (
            f"Noise: repeats of the default differ by {figures.percent(verdict.noise_percent)};"
            " gains below that are not gains."
        )
    if verdict.requests:
        yield f"The verdict rests on {verdict.requests:,} requests of the confirmation."


def explanation_section(document: StudyDocument) -> Html | None:
    """What limits the winner and the default, and what would help next."""
    rows = [
        (row, trial)
        for row in comparison(document)
        if row.standing in (Standing.WINNER, Standing.DEFAULT)
        and (trial := _telling_trial(document, row.arguments)) is not None
    ]
    if not rows:
        return None
    parts = []
    for row, trial in rows:
        explanation = explain_limit(document, trial)
        name = row.label if row.standing is Standing.WINNER else f"default ({row.label})"
        parts.append(
            facts(
                (
                    (f"{name}: limited by", tag("strong", explanation.limit.value)),
                    ("because", "; ".join(explanation.evidence)),
                    ("what would help", explanation.next_step if row.standing is Standing.WINNER else ""),
                )
            )
        )
    return section(
        "limits",
        "What limits it",
        parts,
        tag(
            "p",
            "Judged where the objective begins to be missed, by plain rules on telemetry. GPU utilisation is not among"
            " them: it reads nearly 100 % in any loaded state.",
            class_="under",
        ),
    )


def _telling_trial(document: StudyDocument, arguments: Mapping[str, ArgumentValue]) -> TrialDocument | None:
    """The search trial of a configuration, which tried more loads than its confirmation runs."""
    key = configuration_key(arguments)
    measured = [
        t
        for t in document.trials
        if t.outcome is Outcome.MEASURED and configuration_key(t.arguments) == key and t.probes
    ]
    return next((t for t in measured if t.role is not Role.CONFIRMATION), next(iter(measured), None))


_IMPORTANCE_HEADS = (
    ("argument", False),
    ("explains", True),
    ("90 % interval", True),
    ("by chance", True),
    ("best at", False),
    ("reading", False),
)


def importance_section(document: StudyDocument) -> Html | None:
    """Which arguments mattered, with how sure that is."""
    found = importances(document)
    if not found:
        return None
    rows = []
    for each in found:
        low, high = each.interval
        cells = [
            text_cell(each.argument),
            number_cell(each.share, figures.share(each.share)),
            number_cell(low, f"{100 * low:.0f} to {100 * high:.0f} %"),
            number_cell(each.chance, f"{100 * each.chance:.1f} %"),
            text_cell(each.best_value),
            text_cell("matters" if each.is_clear else "not told from chance"),
        ]
        rows.append(({"class_": "winner"} if each.is_clear else {}, cells))
    caption = "Share of the variance of the trials' ranks that each argument explains by itself"
    return section(
        "arguments",
        "Which arguments mattered",
        table(caption + ("; SIMULATED" if document.simulated else ""), _IMPORTANCE_HEADS, rows),
        tag(
            "p",
            "A hint from the measured trials of baselines and search, not a proof: the search does not try values"
            " evenly, and arguments that act only together can be missed. “By chance” is the probability of as large"
            " a share if the argument did nothing.",
            class_="under",
        ),
    )
