"""The winner as a file that other tools take."""

from autotune.export.best import write_best
from autotune.export.compose import ComposeFormat
from autotune.export.configuration import Configuration, Provenance, configuration_of
from autotune.export.format import ExportFormat, ExportOptions, FormatRegistry
from autotune.export.kubernetes import KubernetesFormat
from autotune.export.provenance import provenance_lines
from autotune.export.simple_formats import EnvFormat, JsonFormat, ShellFormat, command_line
from autotune.export.vllm_config import BestFile, VllmConfigFormat, read_best

FORMATS = FormatRegistry(
    (VllmConfigFormat(), ComposeFormat(), KubernetesFormat(), ShellFormat(), EnvFormat(), JsonFormat())
)
"""Every export format on offer."""

__all__ = [
    "FORMATS",
    "BestFile",
    "Configuration",
    "ExportFormat",
    "ExportOptions",
    "FormatRegistry",
    "Provenance",
    "VllmConfigFormat",
    "command_line",
    "configuration_of",
    "provenance_lines",
    "read_best",
    "write_best",
]
