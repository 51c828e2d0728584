"""What an export format is, and the list of those that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.export.configuration import Configuration


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Choices that formats share."""

    image: str | None = None
    """Container image; None takes vLLM's own image of the measured release."""
    port: int = 8000


class ExportFormat(Protocol):
    """One way to write a configuration for other tools. A new one is a class of this shape, registered.

    ``autotune.export.testing`` has the conformance test that each must pass.
    """

    @property
    def name(self) -> str:
        """What ``--format`` is given."""
        ...

    @property
    def summary(self) -> str:
        """One phrase for the help text."""
        ...

    @property
    def file_name(self) -> str:
        """The usual name of such a file."""
        ...

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The whole text of the file, ending with a line break.

        Raises:
            UsageError: the format needs something that the configuration does not tell.
        """
        ...


class FormatRegistry:
    """Export formats by name."""

    def __init__(self, formats: Iterable[ExportFormat] = ()) -> None:
        self._formats: dict[str, ExportFormat] = {}
        for export_format in formats:
            self.add(export_format)

    def add(self, export_format: ExportFormat) -> None:
        """Offer one more format; a name can be taken once."""
        if export_format.name in self._formats:
            raise ValueError(f"export format {export_format.name} is already there")
        self._formats[export_format.name] = export_format

    def names(self) -> list[str]:
        """All names, in the order in which they were added."""
        return list(self._formats)

    def get(self, name: str) -> ExportFormat:
        """The format of this name.

        Raises:
            UsageError: there is none.
        """
        try:
            return self._formats[name]
        except KeyError:
            raise UsageError(f"format: '{name}' is not known.", did_you_mean(name, self._formats)) from None


def image_of(configuration: Configuration, options: ExportOptions) -> str:
    """The container image to run.

    Raises:
        UsageError: none was given and the study did not run a release of vLLM.
    """
    if options.image is not None:
        return options.image
    if configuration.release is None:
        raise UsageError(
            f"image: engine version '{configuration.provenance.engine_version}' is not a release of vLLM.",
            "Name the image with --image, e.g. --image vllm/vllm-openai:v0.24.0.",
        )
    return f"vllm/vllm-openai:v{configuration.release}"
