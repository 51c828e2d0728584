from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.catalog import model_revision

COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"


def a_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_folder_is_known_by_its_configuration_and_its_weights_files(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "m")
    first = model_revision(str(folder))
    assert first == model_revision(str(folder))
    (folder / "README.md").write_text("words")
    assert model_revision(str(folder)) == first
    os.utime(folder / "model.safetensors", (1, 1))
    touched = model_revision(str(folder))
    assert touched != first
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert model_revision(str(folder)) not in {first, touched}


def test_a_repository_is_known_by_its_commit_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert model_revision("qwen3-4b") == ""
    cached = tmp_path / "models--Qwen--Qwen3-4B"
    a_model(cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    assert model_revision("qwen3-4b") == COMMIT
