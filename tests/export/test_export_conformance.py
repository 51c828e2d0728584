from __future__ import annotations

from autotune.export import FORMATS, ExportFormat
from autotune.export.testing import ExportFormatConformance


class TestVllm(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("vllm")


class TestCompose(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("compose")


class TestKubernetes(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("k8s")


class TestShell(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("shell")


class TestEnvironment(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("env")


class TestJson(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return FORMATS.get("json")


def test_every_format_is_tested_here() -> None:
    tested = {
        kind().make().name for kind in (TestVllm, TestCompose, TestKubernetes, TestShell, TestEnvironment, TestJson)
    }
    assert tested == set(FORMATS.names())
