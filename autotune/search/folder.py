"""The folder of a study on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.base.errors import EnvironmentProblemError
from autotune.base.files import write_atomically
from autotune.store.result import TrialDocument

_IDENTITY = "identity.json"


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """``trials/NNNN/`` and the files beside it."""

    path: Path

    def create(self) -> list[Path]:
        """Make the folder; returns the folders that were made, innermost first.

        Raises:
            EnvironmentProblemError: it cannot be made or written to.
        """
        wanted = self.path / "trials"
        made = [folder for folder in (wanted, *wanted.parents) if not folder.exists()]
        try:
            wanted.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise EnvironmentProblemError(
                f"output folder {self.path}: cannot be written ({error.strerror or error}).",
                "Choose another with --out.",
            ) from error
        return made

    def trial(self, number: int) -> Path:
        """Folder of one trial; made when missing."""
        folder = self.path / "trials" / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_trial(self, document: TrialDocument) -> Path:
        """Write ``trial.json``; atomic."""
        path = self.trial(document.number) / "trial.json"
        write_atomically(path, document.model_dump_json(indent=1) + "\n")
        return path

    def write_identity(self, identity: Mapping[str, Any]) -> None:
        """Write what must not change when the study is resumed, wherever the folder is taken; atomic."""
        write_atomically(self.path / _IDENTITY, json.dumps(identity, indent=1) + "\n")

    def read_identity(self) -> dict[str, Any] | None:
        """What was written of it; None for a new folder, and for one of an earlier version of this program."""
        try:
            found: dict[str, Any] = json.loads((self.path / _IDENTITY).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise EnvironmentProblemError(
                f"{self.path / _IDENTITY}: cannot be read.", "Move the folder away, or choose another with --out."
            ) from error
        return found

    def read_trials(self) -> dict[int, TrialDocument]:
        """Every finished trial on disk, by number; half-written ones do not exist by construction."""
        found = {}
        for path in sorted(self.path.glob("trials/*/trial.json")):
            try:
                document = TrialDocument.model_validate_json(path.read_text())
            except (OSError, ValidationError, json.JSONDecodeError) as error:
                raise EnvironmentProblemError(
                    f"{path}: not a trial of this program.", "Move the folder away, or choose another with --out."
                ) from error
            found[document.number] = document
        return found
