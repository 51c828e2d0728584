"""Named workloads of ``search_spaces/workloads.yaml``."""

from __future__ import annotations

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog._data import data_folder, first_problem
from autotune.spec import Workload

#: The workload of a study that names none.
DEFAULT_WORKLOAD = "chat"


def list_workloads() -> list[Workload]:
    """All named workloads, in the file's order."""
    path = data_folder() / "workloads.yaml"
    workloads = []
    for name, facts in read_yaml_mapping(path).items():
        try:
            workloads.append(Workload.model_validate({"name": name, **(facts if isinstance(facts, dict) else {})}))
        except ValidationError as error:
            raise UsageError(f"{path}: {name}: {first_problem(error)}.", "Correct the file.") from error
    return workloads


def load_workload(name: str) -> Workload:
    """The workload called ``name``.

    Raises:
        UsageError: no such workload; the remedy gives the nearest names.
    """
    workloads = list_workloads()
    for workload in workloads:
        if workload.name == name.strip().casefold():
            return workload
    raise UsageError(f"workload: '{name}' is not known.", did_you_mean(name, [w.name for w in workloads]))
