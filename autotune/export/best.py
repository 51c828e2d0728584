"""``best.yaml`` and ``best.env`` in a study's folder."""

from __future__ import annotations

from pathlib import Path

from autotune.base.files import write_atomically
from autotune.export.configuration import configuration_of
from autotune.export.format import ExportFormat, ExportOptions
from autotune.export.simple_formats import EnvFormat
from autotune.export.vllm_config import VllmConfigFormat
from autotune.store.result import StudyDocument


def write_best(document: StudyDocument, folder: Path) -> list[Path]:
    """Write the best configuration's two files and return their paths.

    Without a best configuration nothing is written, and files of an earlier state of the study are removed:
    they would claim what the study no longer says.
    """
    formats: tuple[ExportFormat, ...] = (VllmConfigFormat(), EnvFormat())
    paths = [folder / export_format.file_name for export_format in formats]
    if document.best is None:
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    configuration = configuration_of(document)
    for export_format, path in zip(formats, paths, strict=True):
        write_atomically(path, export_format.render(configuration, ExportOptions()))
    return paths
