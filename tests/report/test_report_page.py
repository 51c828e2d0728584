from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.base.errors import EnvironmentProblemError
from autotune.report import render_report, write_report
from autotune.store.result import Decision, Outcome, StudyDocument, VerdictDocument

_VOID = {"meta", "link", "br", "hr", "img", "input", "col"}


class _Page(HTMLParser):
    """Collects what the tests look at, and fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "no inline handlers"
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "data-copy", "data-filters", "aria-labelledby"):
                self.links.append((value or "").removeprefix("#"))
            if name in ("src", "srcset", "data", "poster"):
                self.sources.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_page_is_whole_and_needs_nothing_else(document: StudyDocument) -> None:
    text = render_report(document)
    page = _Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.sources == []
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= set(page.ids)
    assert len(text) < 6_000_000
    assert "default-src &#x27;none&#x27;" in text


def test_verdict_comes_first_with_gain_interval_and_the_word_simulated(document: StudyDocument) -> None:
    page = _Page(render_report(document))
    verdict = page.text.replace("\u00a0", " ")
    sentence = (
        "On the SIMULATED NVIDIA T4, qwen3-4b carries 1.49 req/s (149 tok/s out) with P99 latency ≤ 10 s:"
        " +39.5 % (95 % interval +32.4 to +44.9 %)"
    )
    assert sentence in verdict
    assert verdict.index(sentence) < verdict.index("--max-num-seqs 24")


def test_every_titled_figure_of_a_simulated_study_says_so(document: StudyDocument) -> None:
    text = render_report(document)
    captions = re.findall(r"<caption>(.*?)</caption>", text)
    assert captions
    assert all("SIMULATED" in caption for caption in captions)
    assert "P99 latency against rate, SIMULATED" in text
    assert "Capacity of each trial, SIMULATED" in text


def test_real_figures_are_never_called_simulated(real_document: StudyDocument) -> None:
    assert "simulated" not in _Page(render_report(real_document)).text.casefold()


def test_winner_command_can_be_pasted_into_a_shell(document: StudyDocument) -> None:
    text = render_report(document)
    command = re.search(r'<code id="command">(.*?)</code>', text, re.DOTALL)
    assert command is not None
    words = command.group(1).replace("\\\n", " ").split()
    assert words == [
        "VLLM_USE_FLASHINFER_SAMPLER=0",
        "vllm",
        "serve",
        "Qwen/Qwen3-4B",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "24",
        "--max-num-batched-tokens",
        "1024",
        "--gpu-memory-utilization",
        "0.95",
    ]


def test_table_has_every_trial_with_its_outcome(document: StudyDocument) -> None:
    text = render_report(document)
    for outcome in Outcome:
        expected = sum(t.outcome is outcome for t in document.trials)
        assert len(re.findall(rf'<tr data-outcome="{outcome}"', text)) == expected


def test_failures_are_grouped_with_cause_line_and_advice(document: StudyDocument) -> None:
    page = _Page(render_report(document))
    assert "out of GPU memory for activations" in page.text
    assert "Trials 5, 10: cannot run here." in page.text
    assert "Tried to allocate 1.16 GiB" in page.text
    assert "Lower max-num-batched-tokens or gpu-memory-utilization." in page.text
    assert "not the configuration's doing" in page.text


def test_confirmation_tells_the_winners_curse(document: StudyDocument) -> None:
    page = _Page(render_report(document))
    assert "the search's figure for the winner was 2.6 % above its confirmed one" in page.text


def test_what_comes_from_outside_cannot_become_markup(document: StudyDocument) -> None:
    attack = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    data = document.model_dump(mode="json")
    data["study"] = data["gpu"]["title"] = data["model"]["alias"] = data["verdict"]["text"] = attack
    data["definition"]["name"] = data["engine"]["version"] = attack
    for trial in data["trials"]:
        trial["label"] = trial["detail"] = trial["advice"] = trial["reason"] = attack
        trial["arguments"][attack] = attack
        for probe in trial["probes"]:
            probe["purpose"] = probe["p99_label"] = attack
            probe["telemetry"] = {attack: {"mean": attack}}
    page = _Page(render_report(StudyDocument.model_validate(data)))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags


def test_secrets_are_withheld(document: StudyDocument) -> None:
    data = document.model_dump(mode="json")
    data["best"]["environment"]["HF_TOKEN"] = "hf_verysecret"
    data["best"]["arguments"]["api-key"] = "sk-verysecret"
    data["trials"][11]["arguments"]["api-key"] = "sk-verysecret"
    data["storage"] = "postgresql://tuner:verysecret@db/autotune"
    text = render_report(StudyDocument.model_validate(data))
    assert "verysecret" not in text
    assert "(withheld)" in text
    assert "postgresql://tuner:***@db/autotune" in text


@pytest.mark.parametrize("decision", list(Decision))
def test_every_verdict_makes_a_page(document: StudyDocument, decision: Decision) -> None:
    without_best = decision in (Decision.NO_FEASIBLE_CONFIGURATION, Decision.UNFINISHED)
    changed = document.model_copy(
        update={
            "verdict": VerdictDocument(decision=decision, noise_percent=1.9),
            "best": None if without_best else document.best,
        }
    )
    page = _Page(render_report(changed))
    expected = {
        Decision.TUNED: "carries 1.49",
        Decision.KEEP_DEFAULT: "nothing beat qwen3-4b on vLLM's defaults with max-model-len 2048"
        " (as they come they do not run: no room for the KV cache) by more than the noise of 1.9 %",
        Decision.NO_FEASIBLE_CONFIGURATION: "4 could not run, 20 ran and missed it",
        Decision.UNFINISHED: "25 trials of qwen3-4b are done",
    }[decision]
    assert expected in page.text.replace("\u00a0", " ")


def test_a_study_without_trials_makes_a_page(document: StudyDocument) -> None:
    empty = StudyDocument(
        study="empty",
        created="2026-11-30T09:00:00+00:00",
        engine=document.engine,
        gpu={"name": "t4"},
        model={},
        slo={"p99_latency": "10s"},
        workload={},
        definition={},
        space={},
    )
    assert "Not finished" in _Page(render_report(empty)).text


def test_closed_loops_are_drawn_against_concurrency(document: StudyDocument) -> None:
    data = document.model_dump(mode="json")
    for trial in data["trials"]:
        for probe in trial["probes"]:
            probe |= {"loop": "closed", "concurrency": 5, "rate": None}
    page = _Page(render_report(StudyDocument.model_validate(data)))
    assert "P99 latency against concurrency" in page.text
    assert "5 at once" in page.text


def test_a_fixed_load_is_compared_by_its_output(document: StudyDocument) -> None:
    data = document.model_dump(mode="json")
    data["load"] = {"loop": "closed", "rate": None, "concurrency": 5}
    for figures in (*data["trials"], data["best"]):
        figures["capacity_rps"] = None
    page = _Page(render_report(StudyDocument.model_validate(data)))
    text = page.text.replace("\u00a0", " ")
    assert "qwen3-4b carries 149 tok/s out at 5 requests at once with P99 latency ≤ 10 s: +39.5 %" in text
    assert "Output of each trial" in text
    assert "Gain in output" in text
    assert "The load was fixed: 5 requests at once." in text


def test_arguments_that_mattered_are_told_with_their_uncertainty(document: StudyDocument) -> None:
    page = _Page(render_report(document))
    assert "Which arguments mattered" in page.text
    assert "max-num-batched-tokens" in page.text.split("Which arguments mattered")[1].split("A hint from")[0]


def test_a_configuration_that_missed_a_round_is_not_averaged_with_nothing(document: StudyDocument) -> None:
    data = document.model_dump(mode="json")
    missed = data["trials"][16]
    assert missed["label"] == "vllm-default, context fitted"
    missed |= {"capacity_rps": None, "output_tokens_per_s": 0.0}
    page = _Page(render_report(StudyDocument.model_validate(data)))
    assert "2 of 3 runs held the objective" in page.text
    assert "ran, but missed the objective at every load" in page.text


def test_an_unfinished_study_names_the_best_so_far(document: StudyDocument) -> None:
    unfinished = document.model_copy(
        update={"verdict": VerdictDocument(decision=Decision.UNFINISHED), "best": None, "trials": document.trials[:8]}
    )
    text = _Page(render_report(unfinished)).text.replace("\u00a0", " ")
    assert "So far the best is trial 7 (max-model-len 2048, max-num-seqs 32): 1.29 req/s (129 tok/s out)" in text


def test_invalid_probes_are_left_out_of_the_picture_and_counted(document: StudyDocument) -> None:
    data = json.loads(document.model_dump_json())
    data["trials"][4]["probes"][0] |= {"valid": False, "invalid_reason": "client slipped"}
    page = _Page(render_report(StudyDocument.model_validate(data)))
    assert "Invalid probes, left out: 1." in page.text
    assert "invalid: client slipped" in page.text


def test_report_that_cannot_be_written_says_so(document: StudyDocument, tmp_path: Path) -> None:
    path = write_report(document, tmp_path / "report.html")
    assert path.read_text() == render_report(document)
    with pytest.raises(EnvironmentProblemError, match="cannot be written"):
        write_report(document, tmp_path / "absent" / "report.html")
