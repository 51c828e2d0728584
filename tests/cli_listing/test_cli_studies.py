from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from autotune.base.errors import UsageError
from autotune.store.result import StudyDocument

Invoke = Callable[..., Result]


def _copy(workplace: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    source = workplace / "studies" / "t4-qwen3-4b"
    data = json.loads((source / "result.json").read_text())
    data["study"] = name
    change(data)
    folder = workplace / "studies" / name
    folder.mkdir()
    StudyDocument.model_validate(data).write(folder)


def test_studies_are_listed_with_what_they_concluded(invoke: Invoke, workplace: Path) -> None:
    result = invoke("studies")
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if "t4-qwen3-4b" in line]
    for words in ("t4", "qwen3-4b", "SIMULATED", "25", "tuned", "+39.5 %", "30 Nov 2026, 13:47 UTC"):
        assert words in row


def test_studies_as_json(invoke: Invoke, workplace: Path) -> None:
    (study,) = json.loads(invoke("studies", "--json").stdout)["studies"]
    assert study["study"] == "t4-qwen3-4b"
    assert study["engine"] == {"kind": "simulated", "version": "0.1.0"}
    assert study["decision"] == "tuned"
    assert study["gain_percent"] == pytest.approx(39.46, abs=0.01)
    assert study["capacity_rps"] == pytest.approx(1.4935, abs=1e-4)


def test_the_newest_study_comes_first_and_a_broken_one_is_only_a_remark(invoke: Invoke, workplace: Path) -> None:
    _copy(workplace, "newer", lambda data: data.update(finished="2026-12-01T00:00:00+00:00"))
    (workplace / "studies" / "broken").mkdir()
    (workplace / "studies" / "broken" / "result.json").write_text("{")
    result = invoke("studies", "--json")
    assert [s["study"] for s in json.loads(result.stdout)["studies"]] == ["newer", "t4-qwen3-4b"]
    assert "broken/result.json: not a result" in result.stderr


def test_no_studies_are_not_an_error(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "autotune search --gpu t4" in invoke("studies").stdout
    assert json.loads(invoke("studies", "--json").stdout) == {"studies": []}


def test_show_says_verdict_winner_baselines_and_failures(invoke: Invoke, workplace: Path) -> None:
    text = invoke("show", "t4-qwen3-4b").stdout
    assert "On the SIMULATED NVIDIA T4, qwen3-4b carries 1.49 req/s (149 tok/s out)" in text
    assert "Best: max-model-len 2048, max-num-seqs 24" in text
    assert "performance-mode interactivity" in text
    assert "out of GPU memory for activations" in text
    assert "Limited by KV space" in text


def test_top_limits_the_list(invoke: Invoke, workplace: Path) -> None:
    text = invoke("show", "t4-qwen3-4b", "--top", "2").stdout
    listed = text.split("Best trials of the search")[1].split("Failures")[0]
    numbers = [line.split()[0] for line in listed.splitlines() if line.strip() and line.split()[0].isdigit()]
    assert numbers == ["11", "13"]


def test_show_one_trial_lists_its_probes(invoke: Invoke, workplace: Path) -> None:
    text = invoke("show", "t4-qwen3-4b", "--trial", "11").stdout
    assert "Carries 1.53 req/s (153 tok/s out), P99 latency 9.54 s (p99 of 640; 95 % interval 8.96 to 10.4 s)" in text
    assert text.count("p99 of ") == 6
    failed = invoke("show", "t4-qwen3-4b", "--trial", "5").stdout
    assert "Cause: out of GPU memory for activations (oom_activation)" in failed
    assert "What to do: Lower max-num-batched-tokens" in failed


def test_show_as_json_is_the_document(invoke: Invoke, workplace: Path) -> None:
    data = json.loads(invoke("show", "t4-qwen3-4b", "--json").stdout)
    assert StudyDocument.model_validate(data) == StudyDocument.read(workplace / "studies" / "t4-qwen3-4b")
    trial = json.loads(invoke("show", "t4-qwen3-4b", "--trial", "11", "--json").stdout)
    assert trial["trial"]["number"] == 11
    assert trial["engine"]["kind"] == "simulated"


def test_show_never_prints_a_secret(invoke: Invoke, workplace: Path) -> None:
    _copy(workplace, "secret", lambda data: data["best"]["arguments"].update({"api-key": "sk-verysecret"}))
    assert "verysecret" not in invoke("show", "secret").output + invoke("show", "secret", "--json").output


@pytest.mark.parametrize(
    "study", ["t4-qwen3-4b", "studies/t4-qwen3-4b", "./studies/t4-qwen3-4b/", "studies/t4-qwen3-4b/result.json"]
)
def test_a_study_is_named_or_given_by_its_path(invoke: Invoke, workplace: Path, study: str) -> None:
    assert invoke("show", study).exit_code == 0
    assert invoke("show", str(workplace / study if "/" in study else workplace / "studies" / study)).exit_code == 0


def test_an_unknown_study_gets_the_nearest_name(invoke: Invoke, workplace: Path) -> None:
    result = invoke("show", "t4-qwen3")
    assert isinstance(result.exception, UsageError)
    assert "Did you mean t4-qwen3-4b?" in str(result.exception)


def test_a_study_without_a_result_is_told_from_an_unknown_one(invoke: Invoke, workplace: Path) -> None:
    (workplace / "studies" / "begun").mkdir()
    result = invoke("show", "begun")
    assert isinstance(result.exception, UsageError)
    assert "has no result.json yet" in str(result.exception)


def test_compare_shows_what_differs(invoke: Invoke, workplace: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["slo"] = {"p99_latency": "5s"}
        data["definition"]["workload"]["input_tokens"] = {"kind": "uniform", "low": 256, "high": 768}
        data["best"]["arguments"]["max-num-seqs"] = 16
        data["best"]["capacity_rps"] *= 0.5

    _copy(workplace, "other", change)
    data = json.loads(invoke("compare", "t4-qwen3-4b", "other", "--json").stdout)
    assert data["definition"] == {"workload.input_tokens": ["256", "256:768"], "slo.p99_latency": ["10s", "5s"]}
    assert data["arguments"] == {"max-num-seqs": [24, 16]}
    assert data["figures"]["capacity_rps"]["change_percent"] == pytest.approx(-50)
    assert any("answer different questions" in caution for caution in data["cautions"])
    text = invoke("compare", "t4-qwen3-4b", "other").stdout
    assert "workload.input_tokens" in text
    assert "-50.0 %" in text


def test_simulated_and_real_figures_are_not_compared_silently(invoke: Invoke, workplace: Path) -> None:
    _copy(workplace, "real", lambda data: data.update(engine={"kind": "vllm", "version": "0.24.0"}))
    assert "t4-qwen3-4b is SIMULATED and the other is not" in invoke("compare", "t4-qwen3-4b", "real").stdout


def test_equal_studies_have_no_difference(invoke: Invoke, workplace: Path) -> None:
    text = invoke("compare", "t4-qwen3-4b", "t4-qwen3-4b").stdout
    assert "Definition: no difference." in text
    assert "Best configuration: no difference." in text


def test_show_and_compare_tell_a_front_and_another_objective(invoke: Invoke, workplace: Path) -> None:
    def front(data: dict[str, Any]) -> None:
        data["definition"]["objective"] = "pareto"
        best = data["best"]
        best.update(target_latency_s=4.5, light_rps=0.5, power=best["output_tokens_per_s"] / 4.5)
        point = {"number": best["number"], "arguments": best["arguments"], "target_latency_s": 4.5, "light_rps": 0.5}
        data["front"] = [point | {"output_tokens_per_s": best["output_tokens_per_s"]}]

    _copy(workplace, "front", front)
    text = invoke("show", "front").stdout
    assert "Front (SIMULATED)" in text
    assert "(best.yaml)" in text
    difference = json.loads(invoke("compare", "t4-qwen3-4b", "front", "--json").stdout)
    assert difference["definition"]["objective"] == ["capacity", "pareto"]
    assert difference["figures"]["target_latency_s"]["second"] == 4.5
    assert "cost_per_million_tokens" not in difference["figures"]
    assert any("objective" in caution for caution in difference["cautions"])
