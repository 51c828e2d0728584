"""The STUDY argument: a name under ``studies/``, or the path of a study's folder."""

from __future__ import annotations

from pathlib import Path

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.store.result import StudyDocument

STUDIES = Path("studies")
_RESULT = "result.json"


def find_study(study: str, studies: Path = STUDIES) -> Path:
    """The folder of a study.

    Raises:
        UsageError: there is none of that name; the remedy gives the nearest names.
    """
    given = Path(study).expanduser()
    if given.name == _RESULT and given.is_file():
        return given.parent
    candidates = (given,) if given.is_absolute() or len(given.parts) != 1 else (studies / given, given)
    for folder in candidates:
        if (folder / _RESULT).is_file():
            return folder
    for folder in candidates:
        if folder.is_dir():
            raise UsageError(
                f"study '{study}': {folder} has no {_RESULT} yet.", "It appears with the study's first finished trial."
            )
    known = [folder.name for folder in study_folders(studies)]
    if not known:
        raise UsageError(
            f"study '{study}': there is none under {studies}/.", "Run 'autotune search', or give a study's folder."
        )
    raise UsageError(f"study '{study}': there is none of this name under {studies}/.", did_you_mean(study, known))


def study_folders(studies: Path = STUDIES) -> list[Path]:
    """Folders below ``studies`` that hold a result, by name."""
    return sorted(path.parent for path in studies.glob(f"*/{_RESULT}"))


def read_study(study: str) -> tuple[Path, StudyDocument]:
    """Folder and result of a study.

    Raises:
        UsageError: there is none, or its result cannot be read.
    """
    folder = find_study(study)
    return folder, StudyDocument.read(folder)
