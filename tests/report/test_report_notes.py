from __future__ import annotations

from autotune.report import study_note, trial_note
from autotune.report.plots import study_figures
from autotune.store.result import StudyDocument


def test_study_note_says_verdict_comparison_and_failures(document: StudyDocument) -> None:
    note = study_note(document)
    assert note.startswith("**SIMULATED**")
    assert "## Tuned" in note
    assert "+39.5 % (95 % interval +32.4 to +44.9 %)" in note
    assert "| **winner** | 1.49 | +39.5 % | 149 | 9.22 s | confirmed in 3 runs |" in note
    assert "- 2 × out of GPU memory for activations" in note


def test_notes_of_a_real_engine_do_not_say_simulated(real_document: StudyDocument) -> None:
    assert "SIMULATED" not in study_note(real_document)
    assert "SIMULATED" not in trial_note(real_document.trials[11])


def test_trial_note_lists_its_probes(document: StudyDocument) -> None:
    trial = document.trials[11]
    note = trial_note(trial, document.slo, simulated=True)
    assert "**carries 1.53 req/s, 153 tok/s out**" in note
    assert "Objective: P99 latency ≤ 10 s" in note
    assert note.count("(p99 of ") == len(trial.probes)


def test_trial_note_of_a_dropped_trial_is_rough(document: StudyDocument) -> None:
    assert "carries about 0.533 req/s" in trial_note(document.trials[6])


def test_trial_note_of_a_failure_has_its_line_and_advice(document: StudyDocument) -> None:
    note = trial_note(document.trials[5])
    assert "**infeasible: out of GPU memory for activations**" in note
    assert "What to do: Lower max-num-batched-tokens" in note
    assert "```\ntorch.OutOfMemoryError" in note


def test_text_from_outside_cannot_break_out_of_its_place(document: StudyDocument) -> None:
    trial = document.trials[5].model_copy(
        update={
            "detail": "a\n```\n# heading\n````",
            "advice": "<b>x</b> | [y](z)",
            "arguments": {"api-key": "sk-verysecret", "served-model-name": "a`b|c"},
        }
    )
    note = trial_note(trial)
    assert "`````\na\n```\n# heading\n````\n`````" in note
    assert "\\<b\\>x\\</b\\> \\| \\[y\\](z)" in note
    assert "verysecret" not in note


def test_figures_carry_units_and_the_word_simulated(document: StudyDocument, real_document: StudyDocument) -> None:
    drawn = study_figures(document)
    assert set(drawn) == {"p99-latency-rate", "capacity-history"}
    latency = drawn["p99-latency-rate"]
    assert latency.layout.xaxis.title.text == "load, req/s"
    assert latency.layout.yaxis.title.text == "P99 latency, s"
    assert all("SIMULATED" in figure.layout.title.text for figure in drawn.values())
    assert not any("SIMULATED" in figure.layout.title.text for figure in study_figures(real_document).values())
    probes = sum(len(trial.probes) for trial in document.trials)
    assert sum(len(trace.x) for trace in latency.data) == probes
