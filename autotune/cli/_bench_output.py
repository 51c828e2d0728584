"""What a bench prints and writes: the table of levels, one JSON document, one line per request."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from autotune.base.files import write_atomically
from autotune.cli.console import Column, say, show_table
from autotune.load import LoadSummary
from autotune.load.summary import PERCENTILES
from autotune.load.sweep import LevelResult, Sending
from autotune.spec import Metric, Slo
from autotune.stats import CapacityEstimate, ProbeVerdict

_CSV_COLUMNS = (
    "level", "index", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "finished_s", "latency_s", "ttft_s",
    "tpot_s", "max_gap_s", "input_tokens", "output_tokens", "token_source", "chunks", "error", "detail", "http_status",
    "finish_reason",
)  # fmt: skip


def print_levels(results: Sequence[LevelResult], slo: Slo | None, capacity: CapacityEstimate | None) -> None:
    """The table of levels, what went wrong, and the capacity."""
    if not results:
        say("Nothing was measured.")
        return
    columns = [
        Column("load"),
        Column("requests", numeric=True),
        Column("failed", numeric=True),
        Column("real req/s", numeric=True, drop=2),
        *(
            Column(f"{name} P50/P90/P99", numeric=True, drop=drop)
            for name, drop in (("TTFT", 5), ("TPOT", 4), ("E2E", 0))
        ),
        Column("output tok/s", numeric=True),
        Column("total tok/s", numeric=True, drop=1),
    ]
    if slo is not None:
        columns += [Column("good req/s", numeric=True, drop=3), Column("SLO")]
    show_table(columns, [_row(result, slo) for result in results], title=f"SLO: {slo}" if slo else "")
    for result in results:
        for line in _remarks(result):
            say(f"{result.run.plan.level}: {line}")
    if capacity is not None and slo is not None:
        found = f"{capacity.rate:.3g} req/s (90 % interval {capacity.low:.3g} to {capacity.high:.3g})"
        doubt = "" if capacity.resolved else " The search ended before it was sure."
        say(f"Capacity at {slo}: {found}.{doubt}", style="bold")


def document_of(
    url: str, model: str, sending: Sending, results: Sequence[LevelResult], capacity: CapacityEstimate | None
) -> dict[str, object]:
    """The JSON document. What is infinite (a percentile among failed requests) or unknown is null."""
    document: dict[str, object] = {
        "url": url,
        "model": model,
        "endpoint": sending.workload.endpoint.value,
        "workload": {
            **sending.workload.model_dump(mode="json"),
            "input_tokens": str(sending.workload.input_tokens),
            "output_tokens": str(sending.workload.output_tokens),
        },
        "seed": sending.seed,
        "slo": None if sending.slo is None else sending.slo.to_mapping(),
        "levels": [_level(result, sending.slo) for result in results],
    }
    if capacity is not None:
        document["capacity"] = {
            "rate_rps": _finite(capacity.rate),
            "interval_90": [_finite(capacity.low), _finite(capacity.high)],
            "resolved": capacity.resolved,
        }
    return document


def write_requests_csv(path: Path, results: Sequence[LevelResult]) -> None:
    """One line per request; times count from the start of the level."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for result in results:
        started = result.run.started
        for r in result.run.records:
            times = (r.scheduled, r.sent, r.first_token, r.last_token, r.finished)
            spans = (r.latency, r.ttft, r.tpot, r.max_gap)
            writer.writerow(
                [
                    str(result.run.plan.level),
                    r.index,
                    *("" if time is None else f"{time - started:.6f}" for time in times),
                    *("" if span is None else f"{span:.6f}" for span in spans),
                    r.input_tokens,
                    r.output_tokens,
                    r.token_source.value,
                    r.chunks,
                    "" if r.error is None else r.error.value,
                    r.detail,
                    "" if r.http_status is None else r.http_status,
                    r.finish_reason or "",
                ]
            )
    write_atomically(path, buffer.getvalue())


def _row(result: LevelResult, slo: Slo | None) -> list[str]:
    summary = result.summary
    row = [
        str(result.run.plan.level),
        str(summary.requests),
        str(summary.failed),
        f"{summary.realised_rate:.3g}",
        *(_three(summary, metric) for metric in (Metric.TTFT, Metric.TPOT, Metric.LATENCY)),
        f"{summary.output_tokens_per_s:.4g}",
        f"{summary.total_tokens_per_s:.4g}",
    ]
    if slo is not None:
        row += [f"{summary.goodput or 0.0:.3g}", _judgement(result)]
    return row


def _three(summary: LoadSummary, metric: Metric) -> str:
    """Three percentiles in one unit."""
    values = [summary.percentile(metric, p) for p in PERCENTILES]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "failed" if any(math.isinf(value) for value in values) else "-"
    factor, unit = (1000.0, "ms") if max(finite) < 1 else (1.0, "s")
    shown = ("failed" if math.isinf(v) else "-" if math.isnan(v) else f"{v * factor:.3g}" for v in values)
    return f"{'/'.join(shown)} {unit}"


def _judgement(result: LevelResult) -> str:
    verdict = result.verdict
    held = "held" if result.summary.slo_held else "missed"
    if verdict is None:
        return held
    return {"pass": held, "fail": held}.get(verdict.decision.value, f"{held} ({verdict.reason.value})")


def _remarks(result: LevelResult) -> list[str]:
    summary = result.summary
    lines = [f"{group.count} failed ({group.kind.value}), e.g. {group.example}" for group in summary.errors]
    if result.client_problem is not None:
        lines.append(f"not valid: {result.client_problem}")
    if summary.p99_is_maximum and summary.requests:
        lines.append(f"fewer than 100 requests: the P99 is the maximum of {summary.requests}")
    if summary.tokens_estimated:
        lines.append("the server sent no usage: tokens are estimated by counting chunks")
    if summary.cancelled:
        lines.append(f"{summary.cancelled} requests were cut off unfinished and count nowhere")
    return lines


def _level(result: LevelResult, slo: Slo | None) -> dict[str, object]:
    summary, run = result.summary, result.run
    level: dict[str, object] = {
        "loop": run.plan.level.loop.value,
        "rate": run.plan.level.rate,
        "concurrency": run.plan.level.concurrency,
        "requests": summary.requests,
        "succeeded": summary.succeeded,
        "failed": summary.failed,
        "cancelled": summary.cancelled,
        "duration_s": _finite(summary.duration),
        "realised_rate": _finite(summary.realised_rate),
        "input_tokens": summary.input_tokens,
        "output_tokens": summary.output_tokens,
        "tokens_estimated": summary.tokens_estimated,
        "output_tokens_per_s": _finite(summary.output_tokens_per_s),
        "total_tokens_per_s": _finite(summary.total_tokens_per_s),
        "steady_output_tokens_per_s": _finite(summary.steady_output_tokens_per_s),
    }
    for metric in Metric:
        level |= {f"p{p}_{metric.value}_s": _finite(summary.percentile(metric, p)) for p in PERCENTILES}
    level |= {f"p{p}_inter_chunk_s": _finite(summary.inter_chunk[p]) for p in PERCENTILES}
    level["max_gap_s"] = _finite(summary.max_gap)
    level["p99_is_maximum"] = summary.p99_is_maximum
    level["errors"] = [{"kind": g.kind.value, "count": g.count, "example": g.example} for g in summary.errors]
    level["slo"] = None if slo is None else _slo(result, slo)
    level["client"] = {
        "slip_p99_s": run.client.slip_p99,
        "loop_lag_max_s": run.client.loop_lag_max,
        "loop_lag_p99_s": run.client.loop_lag_p99,
        "cpu_s": run.client.cpu_seconds,
        "processes": run.client.processes,
    }
    level["valid"] = result.client_problem is None
    level["invalid_reason"] = result.client_problem
    return level


def _slo(result: LevelResult, slo: Slo) -> dict[str, object]:
    summary = result.summary
    return {
        "targets": slo.to_mapping(),
        "held": summary.slo_held,
        "goodput_share": None if summary.goodput_share is None else _finite(summary.goodput_share),
        "goodput_rps": None if summary.goodput is None else _finite(summary.goodput),
        "verdict": None if result.verdict is None else _verdict(result.verdict),
    }


def _verdict(verdict: ProbeVerdict) -> dict[str, object]:
    """The sequential test's answer; it leaves the warm-up out, so its counts are smaller."""
    return {
        "decision": verdict.decision.value,
        "reason": verdict.reason.value,
        "requests": verdict.requests,
        "misses": verdict.misses,
        "share_missed": _finite(verdict.share),
        "share_interval": [_finite(verdict.share_low), _finite(verdict.share_high)],
        "percentile": {
            "label": verdict.percentile.label,
            "value_s": _finite(verdict.percentile.value),
            "interval_s": [_finite(verdict.percentile.low), _finite(verdict.percentile.high)],
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
