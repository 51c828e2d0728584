"""A study in which nothing holds the objective has a result, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.base.errors import NoFeasibleConfigurationError
from autotune.cli.main import app
from autotune.search import PreparedStudy
from autotune.store.result import Decision, EngineDocument, StudyDocument, VerdictDocument


def ends_without_a_configuration(prepared: PreparedStudy, *_: object) -> StudyDocument:
    folder = prepared.context.folder
    folder.create()
    StudyDocument(
        study=prepared.spec.name, created="2026-01-01T00:00:00Z", model={"name": "qwen3-0.6b"}, gpu={"name": "t4"},
        engine=EngineDocument(kind="simulated", version="0"), slo=prepared.spec.slo.to_mapping(), workload={},
        definition=prepared.spec.model_dump(mode="json"), space={},
        verdict=VerdictDocument(decision=Decision.NO_FEASIBLE_CONFIGURATION, text="Nothing holds."),
    ).write(folder.path)  # fmt: skip
    raise NoFeasibleConfigurationError("Nothing holds.", "Relax the objective.")


@pytest.mark.parametrize("as_json", [True, False])
def test_its_report_is_written_and_its_result_printed(monkeypatch, tmp_path: Path, as_json: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.cli.search.run_prepared", ends_without_a_configuration)
    command = ["search", "--gpu", "t4", "--model", "qwen3-0.6b", "--slo-p99", "1ms", "--engine", "simulated"]
    found = CliRunner().invoke(app, [*command, "--name", "none", *(["--json"] if as_json else [])])
    assert isinstance(found.exception, NoFeasibleConfigurationError)
    assert "Nothing holds." in (tmp_path / "studies/none/report.html").read_text()
    if as_json:
        assert json.loads(found.stdout)["verdict"]["decision"] == "no-feasible-configuration"
    else:
        assert "No best.yaml was written." in found.stdout
