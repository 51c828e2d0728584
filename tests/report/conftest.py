from __future__ import annotations

from pathlib import Path

import pytest

from autotune.store.result import EngineDocument, StudyDocument

_DATA = Path(__file__).parent / "data"


@pytest.fixture
def document() -> StudyDocument:
    """A finished study on the simulated engine with every kind of trial in it."""
    return StudyDocument.read(_DATA)


@pytest.fixture
def real_document(document: StudyDocument) -> StudyDocument:
    """The same as if a real engine had given the figures."""
    return document.model_copy(update={"engine": EngineDocument(kind="vllm", version="0.24.0")})
