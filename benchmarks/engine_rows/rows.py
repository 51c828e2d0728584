"""The files of a run: the table of rows, and the records of single requests."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Mapping
from pathlib import Path

from .clients import RECORD, Records

#: Columns of rows.csv, in order.
COLUMNS = (
    *("engine", "gpu", "vllm", "model", "flags"),
    *("load", "level", "repeat", "endpoint", "input_tokens", "output_tokens"),
    *("requests", "failed", "unfinished", "duration_s", "window_s"),
    *("output_tok_s", "total_tok_s", "req_s", "engine_output_tok_s"),
    *("latency_p50_s", "latency_p90_s", "latency_p99_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_ms", "tpot_p99_ms"),
    *("running_mean", "waiting_mean", "kv_usage_mean", "preemptions", "power_w", "sm_clock_mhz", "gpu_util_pct"),
    *("start_mode", "start_imports_s", "start_weights_s", "start_compile_s", "start_graphs_s", "start_warmup_s"),
    *("start_rest_s", "start_total_s", "kv_tokens", "kv_gib", "weights_gib", "graphs_gib", "client_lag_p99_s"),
)


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Append a row to a table, with a header when it is new, and flush it to the disk."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


def write_records(path: Path, records: Records, start: float) -> None:
    """Records as CSV, times in seconds from the start of the load; status 0 finished, 1 failed, 2 cut."""
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(RECORD.names or ())
        for record in records:
            times = [f"{record[name] - start:.4f}" for name in ("scheduled", "sent", "first", "last")]
            writer.writerow([*times, *(int(record[name]) for name in ("prompt", "output", "chunks", "status"))])
