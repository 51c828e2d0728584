"""``autotune bench`` as a user runs it, against the golden server."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Golden

SHORT = ("--input-tokens", "16", "--output-tokens", "8", "--warm-up", "2")


def bench(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune.cli.main", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        cwd=cwd,
        check=False,
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_a_sweep_as_json_and_csv(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    arguments = ("--url", golden.url, "--rate", "20,40", "--requests", "12", "--slo-p99", "60s", "--seed", "3")
    result = document(bench(*arguments, *SHORT, "--json", "--csv", str(path)))
    assert (result["model"], result["endpoint"], result["seed"]) == ("golden", "completions", 3)
    assert [level["rate"] for level in result["levels"]] == [20, 40]
    for level in result["levels"]:
        assert (level["requests"], level["succeeded"], level["failed"]) == (12, 12, 0)
        assert (level["input_tokens"], level["output_tokens"]) == (12 * 16, 12 * 8)
        ratio = level["total_tokens_per_s"] / level["output_tokens_per_s"]
        assert ratio == pytest.approx(3)
        assert 0 < level["p50_latency_s"] <= level["p99_latency_s"]
        assert 0 < level["p99_ttft_s"] <= level["p99_latency_s"]
        assert level["p99_tpot_s"] >= 0
        assert level["p99_is_maximum"] is True
        assert level["errors"] == []
        assert level["slo"]["held"] is True
        assert level["slo"]["targets"] == {"p99_latency": "60s"}
        assert level["client"]["processes"] == 1
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 24
    assert {row["level"] for row in rows} == {"20 req/s", "40 req/s"}
    assert all(float(row["latency_s"]) >= float(row["ttft_s"]) > 0 for row in rows)


def test_the_table_names_levels_failures_and_the_verdict(golden: Golden) -> None:
    done = bench("--url", golden.url, "--concurrency", "2", "--requests", "5", "--slo-p99", "1ms", *SHORT)
    assert done.returncode == 0
    assert "2 at once" in done.stdout
    assert "missed" in done.stdout
    assert "maximum of 5" in done.stdout
    assert "level 1 of 1" in done.stderr


def test_failures_are_in_the_document_with_an_example(golden: Golden) -> None:
    # The model list offers only "golden"; faults are models that a server without a list would take.
    done = bench("--url", golden.url, "--model", "golden", "--concurrency", "1", "--requests", "2",
                 "--request-timeout", "1ms", "--input-tokens", "8", "--output-tokens", "8", "--warm-up", "0",
                 "--json")  # fmt: skip
    assert done.returncode == 4
    assert "no request succeeded" in done.stderr
    (level,) = json.loads(done.stdout)["levels"]
    assert level["failed"] == 2
    assert level["p99_latency_s"] is None
    (error,) = level["errors"]
    assert (error["kind"], error["count"]) == ("timeout", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--rate", "5", "--concurrency", "2"), 2, "--rate and --concurrency"),
        ((), 2, "no load is given"),
        (("--rate", "fast"), 2, "'fast' is not a rate"),
        (("--rate", "0"), 2, "must be more than zero"),
        (("--concurrency", "0"), 2, "not a whole number above zero"),
        (("--rate", "5", "--requests", "0"), 2, "--requests"),
        (("--rate", "5", "--slo-p99", "10"), 2, "no unit"),
        (("--capacity",), 2, "needs an objective"),
        (("--rate", "5", "--model", "goldne"), 2, "Did you mean golden?"),
        (("--rate", "5", "--csv", "/no/such/folder/x.csv"), 2, "--csv"),
        (("--rate", "5", "--url", "127.0.0.1:80"), 2, "--url"),
        (("--rate", "5", "--url", "http://127.0.0.1:9"), 4, "connection refused"),
        (("--rate", "5", "--workload", "chta"), 2, "Did you mean"),
        (("--rate", "5", "--api-key-env", "NO_SUCH_KEY"), 2, "NO_SUCH_KEY"),
        (("--rate", "5", "--dataset", "/no/such/file"), 2, "No such file"),
        (("--rate", "5", "--replay"), 2, "--replay needs a trace"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    golden: Golden, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    where = () if "--url" in arguments else ("--url", golden.url)
    done = bench(*where, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_refused_names_the_option_and_not_the_key(golden: Golden) -> None:
    done = bench("--url", golden.url, "--rate", "5", "--api-key-env", "KEY", KEY="sk-wrong-secret")
    assert done.returncode == 4
    assert "401" in done.stderr
    assert "--api-key-env" in done.stderr
    assert "secret" not in done.stderr + done.stdout


def test_a_replay_without_a_rate_takes_the_traces_own(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 10 + i, "output_length": 3} for i in range(11)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    result = document(
        bench("--url", golden.url, "--dataset", str(path), "--replay", "--requests", "11", "--warm-up", "0", "--json")
    )
    (level,) = result["levels"]
    assert level["rate"] == pytest.approx(10)
    assert level["input_tokens"] == sum(10 + i for i in range(11))
    assert level["duration_s"] > 1.0


def test_ctrl_c_shows_what_was_measured_and_leaves_no_process(golden: Golden) -> None:
    command = [sys.executable, "-m", "autotune.cli.main", "bench", "--url", golden.url, "--rate", "30", "--requests"]
    process = subprocess.Popen(
        [*command, "100000", *SHORT, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "level 1 of 1" not in process.stderr.readline():
        pass
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    (level,) = json.loads(stdout)["levels"]
    assert 0 < level["succeeded"] < 100_000
    assert level["failed"] == 0
