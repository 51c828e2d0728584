"""The main job on the simulated engine, as a user runs it."""

from __future__ import annotations

import signal
import sqlite3

import pytest
import yaml

# A P90 needs a tenth of the requests of a P99: what is tested is the job, not the figures.
STUDY = """
name: quick
gpu: t4
model: qwen3-0.6b
workload: {input_tokens: 64, output_tokens: 32}
slo: {p90_latency: 3s}
load: {concurrency: 4}
budget: {trials: 2}
"""
QUICK = ("search", "--study", "quick.yaml", "--time-scale", "20")
FILES = {"best.yaml", "best.env", "result.json", "report.html", "trials"}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def study_file(cli) -> None:
    (cli.folder / "quick.yaml").write_text(STUDY)


def test_a_study_leaves_all_its_files_and_no_process(cli) -> None:
    done = cli.run(*QUICK)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stderr
    assert "SIMULATED" in done.stdout
    folder = cli.folder / "studies" / "quick"
    assert {p.name for p in folder.iterdir()} >= FILES
    result = cli.result("quick")
    assert result["engine"]["kind"] == "simulated"
    assert result["verdict"]["decision"] in ("tuned", "keep-default")
    launched = [t for t in result["trials"] if t["launched"]]
    assert result["baselines"] == [t["number"] for t in result["trials"] if t["role"] == "baseline"]
    for trial in launched:
        files = {p.name for p in (folder / "trials" / f"{trial['number']:04d}").iterdir()}
        assert files >= {"engine.log", "requests.csv.gz", "telemetry.csv.gz", "trial.json"}
    spent = result["time"]
    assert spent["measure"] == pytest.approx(sum(t["timings"]["measure"] for t in result["trials"]))
    assert "SIMULATED" in (folder / "best.yaml").read_text()
    assert "model" in yaml.safe_load((folder / "best.yaml").read_text())
    assert "simulated" in (folder / "report.html").read_text().lower()
    assert cli.engines("quick") == []

    again = cli.run(*QUICK)
    assert again.returncode == 0, again.stderr
    assert [t["number"] for t in cli.result("quick")["trials"]] == [t["number"] for t in result["trials"]]

    changed = cli.run(*QUICK, "--slo-p99", "4s")
    assert changed.returncode == 2
    assert "slo" in changed.stderr
    assert changed.stderr.count("\n") == 1

    exported = cli.run("export", "quick", "--format", "shell")
    assert exported.returncode == 0
    assert "vllm serve" in exported.stdout
    shown = cli.run("show", "quick", "--json")
    assert shown.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_leaves_no_engine_and_resumes(cli, end, number) -> None:
    running = cli.start(*QUICK)
    cli.wait_for((cli.folder / "studies/quick/trials/0001/engine.log").exists, "the second trial")
    code, errors = end(running, number)
    assert code == 130, errors
    assert "Resume with: autotune search --study quick.yaml" in errors
    assert cli.engines("quick") == []
    finished = [t["number"] for t in cli.result("quick")["trials"]]
    assert finished == [0]
    done = cli.run(*QUICK)
    assert done.returncode == 0, done.stderr
    assert [t["number"] for t in cli.result("quick")["trials"]][:1] == finished


def test_a_killed_study_loses_nothing_and_its_engine_is_ended(cli, end) -> None:
    running = cli.start(*QUICK)
    cli.wait_for((cli.folder / "studies/quick/trials/0001/requests.csv.gz").exists, "a probe of the second trial")
    end(running, signal.SIGKILL)
    with sqlite3.connect(cli.folder / "studies/autotune.db") as database:
        probes = database.execute("select count(*) from autotune_probes where trial_number = 1").fetchone()[0]
    assert probes >= 1
    before = cli.result("quick")["trials"][0]
    done = cli.run(*QUICK)
    assert done.returncode == 0, done.stderr
    after = cli.result("quick")["trials"]
    assert after[0] == before
    assert cli.engines("quick") == []
