"""What a trial leaves in its folder beside ``engine.log`` and ``trial.json``."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

from autotune.base.files import write_atomically
from autotune.load.records import RequestRecord

COLUMNS = (
    "probe", "index", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "finished_s", "input_tokens",
    "output_tokens", "token_source", "chunks", "error", "http_status", "finish_reason",
)  # fmt: skip


def write_requests(path: Path, probes: Sequence[tuple[int, float, Sequence[RequestRecord]]]) -> None:
    """Write ``requests.csv.gz``: (probe, start of the probe, its records); times are seconds since that start."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for probe, started, records in probes:
        for r in records:
            times = (r.scheduled, r.sent, r.first_token, r.last_token, r.finished)
            writer.writerow(
                [
                    probe,
                    r.index,
                    *("" if t is None else f"{t - started:.6f}" for t in times),
                    r.input_tokens,
                    r.output_tokens,
                    r.token_source.value,
                    r.chunks,
                    "" if r.error is None else r.error.value,
                    "" if r.http_status is None else r.http_status,
                    r.finish_reason or "",
                ]
            )
    write_atomically(path, gzip.compress(buffer.getvalue().encode(), mtime=0))
