"""The HTML report of a study, its pictures, and the notes that optuna-dashboard shows."""

from autotune.report.notes import study_note, trial_note
from autotune.report.page import render_report, write_report

__all__ = ["render_report", "study_note", "trial_note", "write_report"]
