"""The main job on the simulated engine, as a user runs it."""

from __future__ import annotations

import signal
import sqlite3
import statistics

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


LOSSY = """
name: lossy
gpu: l4
model: qwen3-0.6b
workload: {input_tokens: 64, output_tokens: 32}
slo: {p90_latency: 3s}
load: {concurrency: 4}
allow_lossy: true
space: {max-num-seqs: , max-num-batched-tokens: , gpu-memory-utilization: , stream-interval: , async-scheduling: }
budget: {trials: 2}
"""


def test_lossy_configurations_are_compared_with_the_default_and_the_next_study_reuses_what_was_measured(cli) -> None:
    (cli.folder / "lossy.yaml").write_text(LOSSY)
    command = ("search", "--study", "lossy.yaml", "--engine", "simulated", "--time-scale", "20")
    done = cli.run(*command)
    assert done.returncode == 0, done.stderr
    result = cli.result("lossy")
    lossy = {"kv-cache-dtype", "quantization"}
    assert lossy <= set(result["space"]["parameters"])
    for trial in result["trials"]:
        if trial["outcome"] == "measured" and trial["launched"] and lossy & set(trial["arguments"]):
            assert trial["quality"]["prompts"] == 64
            assert 0.5 < trial["quality"]["agreement"]["first_tokens"] <= 1
    folder = cli.folder / "studies" / "lossy"
    assert (folder / "reference_answers.json").exists()
    assert "What happens to the output" in (folder / "report.html").read_text()
    if lossy & set(result["best"]["arguments"]):
        assert "Greedy simulated output against that of vLLM's defaults" in (folder / "best.yaml").read_text()

    again = cli.run(*command, "--name", "again")
    assert again.returncode == 0, again.stderr
    second = cli.result("again")
    reused = [t for t in second["trials"] if t["reused_from"]]
    assert all(t["reused_from"].startswith("lossy/") and not t["launched"] for t in reused)
    assert all(t["role"] == "search" for t in reused)
    measured = [t["arguments"] for t in result["trials"] if t["role"] == "search" and t["outcome"] == "measured"]
    launched = [t["arguments"] for t in second["trials"] if t["role"] == "search" and t["launched"]]
    # A machine that was much busier in one of the two studies gives other figures, which are not reused.
    before = statistics.median(t["output_tokens_per_s"] for t in result["trials"] if t["arguments"] == {})
    now = second["trials"][0]["output_tokens_per_s"]
    if 0.92 < now / before < 1.08:
        assert reused
        assert not [arguments for arguments in launched if arguments in measured]
