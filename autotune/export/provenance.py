"""What an exported file says about its origin, as comment lines; and reading it back."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from autotune.export.configuration import Configuration, Provenance

_MARK = "# provenance: "


def provenance_lines(configuration: Configuration) -> list[str]:
    """Sentences for people, without comment signs or line breaks inside."""
    return [" ".join(line.split()) for line in _lines(configuration)]


def _lines(configuration: Configuration) -> Iterator[str]:
    facts = configuration.provenance
    if facts.simulated:
        yield "SIMULATED: these figures come from the simulated engine, not from a GPU."
        yield "Measure them on the real one before relying on them: autotune verify."
    yield f"Found by {facts.program}: study {facts.study}, trial {facts.trial}, {facts.finished or facts.created}"
    yield f"GPU: {facts.gpu_title} ({facts.gpu}); model: {facts.model}; engine: {engine_words(facts)}"
    yield f"Objective: {' and '.join(f'{key} <= {limit}' for key, limit in facts.slo.items())}"
    workload = workload_words(facts)
    if workload:
        yield f"Workload: {workload}"
    yield from _figures(facts)
    if facts.quality is not None:
        word = "simulated output" if facts.simulated else "output"
        yield f"Greedy {word} against that of vLLM's defaults: {facts.quality.text}"
    if facts.gain_percent is not None:
        interval = facts.interval_95
        spread = f" (95 % interval {interval[0]:+.1f} to {interval[1]:+.1f} %)" if interval else ""
        yield f"Verdict: {facts.decision}; {facts.gain_in} {facts.gain_percent:+.1f} %{spread} against vLLM's defaults"
    else:
        yield f"Verdict of the study: {facts.decision}"
    if facts.dominated:
        yield "This trial was dropped early because another was clearly better: its figures are rough."
    if configuration.withheld:
        yield f"Secret, so not written here; set it yourself: {', '.join(configuration.withheld)}"


def engine_words(facts: Provenance) -> str:
    """Kind and version of the engine, e.g. ``vLLM 0.24.0``."""
    return f"SIMULATED, by autotune {facts.engine_version}" if facts.simulated else f"vLLM {facts.engine_version}"


def workload_words(facts: Provenance) -> str:
    """Name and lengths of the workload in a phrase; empty when unknown."""
    workload = facts.workload
    if not workload:
        return ""
    parts = [str(workload.get("name", "custom"))]
    for key, words in (("input_tokens", "tokens in"), ("output_tokens", "tokens out")):
        if key in workload:
            parts.append(f"{_length(workload[key])} {words}")
    return ", ".join(parts)


def _length(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    low, high = value.get("low"), value.get("high")
    return f"{low}" if low == high else f"{low}:{high}"


def _figures(facts: Provenance) -> Iterator[str]:
    figures = [
        f"{value:.4g} {unit}"
        for value, unit in (
            (facts.capacity_rps, "req/s"),
            (facts.output_tokens_per_s, "output tok/s"),
            (facts.total_tokens_per_s, "total tok/s"),
        )
        if value is not None
    ]
    word = "Simulated" if facts.simulated else "Measured"
    standing = "confirmed on fresh engines" if facts.confirmed else "from the search, not confirmed"
    if figures:
        yield f"{word} at the objective ({standing}): {', '.join(figures)}"
    latencies = [
        f"{name} {value:.4g} s"
        for name, value in (
            ("P50 latency", facts.p50_latency_s),
            ("P99 latency", facts.p99_latency_s),
            ("P99 TTFT", facts.p99_ttft_s),
            ("P99 TPOT", facts.p99_tpot_s),
        )
        if value is not None
    ]
    if latencies:
        yield f"{word} there: {', '.join(latencies)}, from {facts.requests} requests"
    if facts.light_rps is not None and facts.target_latency_s is not None:
        first = next(iter(facts.slo), "latency").replace("_", " ").upper()
        yield f"{word} at {facts.light_rps:.4g} req/s: {first} {facts.target_latency_s:.4g} s"
    for part in facts.workloads:
        rate = f"{part.capacity_rps:.4g} req/s, " if part.capacity_rps is not None else ""
        yield f"{word} with {part.workload}: {rate}{part.output_tokens_per_s or 0.0:.4g} output tok/s"
    if facts.cost_per_million_tokens is not None:
        yield f"Cost there: {facts.cost_per_million_tokens:.4g} USD per million output tokens"
    if facts.energy_per_token_j is not None:
        yield f"Energy there: {facts.energy_per_token_j:.4g} J per output token"


def comment_block(configuration: Configuration, first: str) -> str:
    """Comment lines for a file in which ``#`` begins a comment; ends with the machine-readable provenance."""
    lines = [first, *provenance_lines(configuration)]
    return "".join(f"# {line}\n" for line in lines) + f"{_MARK}{_one_line_json(configuration.provenance)}\n"


def _one_line_json(facts: Provenance) -> str:
    return facts.model_dump_json(exclude_none=True)


def find_provenance(text: str) -> Provenance | None:
    """The provenance in an exported file; None when there is none or it is damaged."""
    for line in text.splitlines():
        if line.startswith(_MARK):
            try:
                return Provenance.model_validate_json(line.removeprefix(_MARK))
            except ValidationError:
                return None
    return None
