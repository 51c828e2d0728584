from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import NoFeasibleConfigurationError, UsageError
from autotune.export import FORMATS, ExportOptions, configuration_of
from autotune.simulator import VERSION
from autotune.store.result import Decision, EngineDocument, StudyDocument


def test_the_best_carries_its_confirmed_figures(document: StudyDocument) -> None:
    configuration = configuration_of(document)
    assert configuration.model == "Qwen/Qwen3-4B"
    assert configuration.provenance.capacity_rps == 1.4935
    assert configuration.provenance.confirmed
    assert configuration.provenance.gain_percent == 39.46


def test_a_switch_without_a_no_form_is_left_out_when_false(document: StudyDocument) -> None:
    arguments = configuration_of(document).arguments
    assert "disable-log-stats" not in arguments
    assert arguments["enable-prefix-caching"] is False


def test_secrets_are_named_but_not_carried(document: StudyDocument) -> None:
    configuration = configuration_of(document)
    assert set(configuration.withheld) == {"api-key", "HF_TOKEN"}
    assert "api-key" not in configuration.arguments
    assert "HF_TOKEN" not in configuration.environment


@pytest.mark.parametrize("name", FORMATS.names())
def test_no_format_writes_a_secret(document: StudyDocument, name: str) -> None:
    assert "verysecret" not in FORMATS.get(name).render(configuration_of(document), ExportOptions())


def test_another_trial_carries_its_own_figures_and_no_gain(document: StudyDocument) -> None:
    configuration = configuration_of(document, 1)
    assert configuration.arguments == {"max-model-len": 2048}
    assert configuration.provenance.capacity_rps == 1.07
    assert configuration.provenance.gain_percent is None
    assert not configuration.provenance.confirmed


def test_what_was_not_measured_is_not_exported(document: StudyDocument) -> None:
    with pytest.raises(UsageError, match=r"trial 0 was not measured \(infeasible: oom_kv_cache\)"):
        configuration_of(document, 0)
    with pytest.raises(UsageError, match="no trial 9"):
        configuration_of(document, 9)


def test_a_study_without_a_best_has_nothing_to_export(document: StudyDocument) -> None:
    without = document.model_copy(update={"best": None})
    with pytest.raises(NoFeasibleConfigurationError, match="no best configuration"):
        configuration_of(without)
    assert configuration_of(without, 2).provenance.trial == 2


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.24.0", "0.24.0"),
        ("0.24.0+cpu", "0.24.0"),
        ("vllm-0.32.0rc1", "0.32.0rc1"),
        ("0.24.1.dev12+gabcdef", None),
        ("unknown", None),
        ("0.24", None),
    ],
)
def test_only_releases_have_an_image_of_their_version(
    document: StudyDocument, version: str, release: str | None
) -> None:
    changed = document.model_copy(update={"engine": EngineDocument(kind="vllm", version=version)})
    assert configuration_of(changed).release == release


def test_a_simulated_study_takes_the_image_of_the_release_that_is_simulated(document: StudyDocument) -> None:
    simulated = document.model_copy(update={"engine": EngineDocument(kind="simulated", version="0.1.0")})
    assert configuration_of(simulated).release == VERSION.partition("+")[0]


def test_a_kept_default_claims_no_gain(document: StudyDocument) -> None:
    verdict = document.verdict.model_copy(update={"decision": Decision.KEEP_DEFAULT})
    assert configuration_of(document.model_copy(update={"verdict": verdict})).provenance.gain_percent is None


def test_a_folder_is_named_by_its_whole_path(
    document: StudyDocument, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    local = document.model_copy(update={"model": {"repository": "models/tiny"}})
    assert configuration_of(local).model == str(folder)
    assert configuration_of(local).local_model


def test_unknown_formats_get_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean compose"):
        FORMATS.get("compos")


def test_names_of_formats_are_taken_once() -> None:
    with pytest.raises(ValueError, match="already there"):
        FORMATS.add(FORMATS.get("vllm"))
