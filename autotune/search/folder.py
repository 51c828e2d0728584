"""The folder of a study on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from autotune.base.errors import EnvironmentProblemError
from autotune.base.files import write_atomically
from autotune.store.result import TrialDocument


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
