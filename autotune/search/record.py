"""The Optuna side of a study: ask, tell, and what optuna-dashboard shows.

The values are those of the study's aim: by default one, output tok/s at the SLO, 0 where it never holds. Two
constraints on every finished trial, always in this order: ``slo`` (log of the worst ratio of a percentile to its
limit, clipped to [-2, 2]) and ``memory`` (+1 where the configuration cannot run, else -1).
"""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.base.errors import EnvironmentProblemError
from autotune.search.objective import CAPACITY_AIM, Aim
from autotune.spec import Arguments
from autotune.store.result import Outcome, Role, TrialDocument

SLO_CLIP = 2.0
IN_MEMORY = "memory:"
"""A storage that is gone with the process."""
_DASHBOARD_CONSTRAINTS = "constraints"
"""Key that optuna-dashboard 0.21 reads; Optuna 5 itself writes ``constraints:<name>``."""
_LOCK_PATIENCE_S = 120.0

_Result = TypeVar("_Result")


class _Connection(sqlite3.Connection):
    """Commits without waiting for the disk: a power cut may lose the last ones, and ``trial.json`` has them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=NORMAL")


def trial_constraints(document: TrialDocument) -> dict[str, float]:
    """Constraint values of a finished trial, in their fixed order; at most 0 means satisfied."""
    if document.outcome is Outcome.INFEASIBLE:
        return {"slo": 0.0, "memory": 1.0}
    margin = 0.0 if document.slo_margin is None else document.slo_margin
    return {"slo": max(-SLO_CLIP, min(SLO_CLIP, margin)), "memory": -1.0}


def _patiently(action: Callable[[], _Result]) -> _Result:
    """Run a storage action; wait while another program holds the database, so that no result is lost."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            return action()
        except StorageInternalError as error:
            if "locked" not in str(error.__cause__ or error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class OptunaRecord:
    """An Optuna study that is driven by ask and tell.

    ``make_sampler`` gives the sampler for the n-th proposal: seeded by it alone, so that a study that was killed
    and resumed proposes what an undisturbed one would have proposed.
    """

    def __init__(
        self, url: str, name: str, make_sampler: Callable[[int], BaseSampler], artifacts: Path, aim: Aim = CAPACITY_AIM
    ) -> None:
        self._make_sampler = make_sampler
        self._aim = aim
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        connect = {"timeout": 60, "factory": _Connection} if url.startswith("sqlite") else {}
        try:
            engine = {"connect_args": connect}
            storage = InMemoryStorage() if url == IN_MEMORY else RDBStorage(url, engine_kwargs=engine)
            self._study = optuna.create_study(
                storage=storage,
                study_name=name,
                sampler=make_sampler(0),
                directions=[figure.direction for figure in aim.told],
                load_if_exists=True,
            )
        except Exception as error:
            reason = str(error).splitlines()[0][:160]
            raise EnvironmentProblemError(
                f"storage {url}: cannot be opened ({reason}).", "Check the URL and the rights on its folder."
            ) from error
        if self._study.metric_names is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._study.set_metric_names(aim.metric_names)
        artifacts.mkdir(parents=True, exist_ok=True)
        self._artifacts = FileSystemArtifactStore(artifacts)

    @property
    def study(self) -> optuna.Study:
        """The study itself."""
        return self._study

    def attribute(self, key: str) -> Any:
        """A user attribute of the study, None where it is not set."""
        return self._study.user_attrs.get(key)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set a user attribute of the study."""
        _patiently(lambda: self._study.set_user_attr(key, value))

    def trials(self) -> list[FrozenTrial]:
        """All trials of the study in order of number."""
        return self._study.get_trials(deepcopy=False)

    def enqueue(self, params: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        """Have the next ``ask`` return these parameters with these attributes."""
        _patiently(lambda: self._study.enqueue_trial(dict(params), user_attrs=dict(attributes)))

    def ask(self, distributions: Mapping[str, BaseDistribution], proposal: int) -> Trial:
        """The next trial: an enqueued one, or the sampler's proposal number ``proposal``."""
        self._study.sampler = self._make_sampler(proposal)
        return _patiently(lambda: self._study.ask(fixed_distributions=dict(distributions)))

    def tell(self, trial: Trial, document: TrialDocument) -> None:
        """Store a trial's figures and outcome; afterwards it survives anything."""
        for key, value in trial_attributes(document).items():
            _patiently(lambda key=key, value=value: trial.set_user_attr(key, value))  # type: ignore[misc]
        if document.outcome is Outcome.FAULT:
            _patiently(lambda: self._study.tell(trial, state=TrialState.FAIL))
            return
        constraints = trial_constraints(document)
        for name, value in constraints.items():
            _patiently(lambda name=name, value=value: trial.set_constraint(name, value))  # type: ignore[misc]
        storage = self._study._storage
        _patiently(
            lambda: storage.set_trial_system_attr(trial._trial_id, _DASHBOARD_CONSTRAINTS, list(constraints.values()))
        )
        _patiently(lambda: self._study.tell(trial, [figure.told(document) for figure in self._aim.told]))

    def stale(self) -> list[FrozenTrial]:
        """Trials that a killed run left running."""
        return [t for t in self.trials() if t.state is TrialState.RUNNING]

    def fail(self, number: int) -> None:
        """Mark a trial as failed, so that the sampler forgets it."""
        _patiently(lambda: self._study.tell(number, state=TrialState.FAIL))

    def reopened(self, trial: FrozenTrial) -> Trial:
        """A trial of an earlier run, to be told now."""
        return Trial(self._study, trial._trial_id)

    def waiting(self) -> list[FrozenTrial]:
        """Trials that are enqueued and not yet begun."""
        return [t for t in self.trials() if t.state is TrialState.WAITING]

    def note(self, number: int | None, text: str) -> None:
        """Show a markdown note in the dashboard, for one trial or (None) for the study."""
        from optuna_dashboard import save_note

        target = self._study if number is None else self.reopened(self.trials()[number])
        _patiently(lambda: save_note(target, text))

    def picture(self, name: str, figure: Any) -> None:
        """Show a Plotly figure on the study's page in the dashboard."""
        from optuna_dashboard import save_plotly_graph_object

        _patiently(lambda: save_plotly_graph_object(self._study, figure, graph_object_id=name))

    def attach(self, number: int, path: Path, mimetype: str) -> None:
        """Attach a file to a trial as an artifact."""
        trial = self.trials()[number]
        _patiently(
            lambda: upload_artifact(
                study_or_trial=trial,
                file_path=str(path),
                artifact_store=self._artifacts,
                storage=self._study._storage,
                mimetype=mimetype,
            )
        )


def trial_attributes(document: TrialDocument) -> dict[str, Any]:
    """Every figure of a trial as flat attributes, which the dashboard can list and plot."""
    attributes: dict[str, Any] = {
        "role": document.role.value,
        "label": document.label,
        "arguments": dict(document.arguments),
        "outcome": document.outcome.value,
        "reason": document.reason,
        "requests": document.requests,
        "launched": document.launched,
        "dominated": document.dominated,
    }
    if document.block is not None:
        attributes["block"] = document.block
    for name in (
        "detail",
        "advice",
        "capacity_rps",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "p50_latency_s",
        "p99_latency_s",
        "p99_ttft_s",
        "p99_tpot_s",
        "target_latency_s",
        "light_rps",
        "power",
        "cost_per_million_tokens",
        "energy_per_token_j",
        "relative",
        "slo_margin",
    ):
        value = getattr(document, name)
        if value not in (None, ""):
            attributes[name] = value
    for part in document.workloads:
        for name in ("capacity_rps", "output_tokens_per_s", "p99_latency_s"):
            attributes[f"{part.workload}.{name}"] = getattr(part, name)
    attributes |= {f"{name}_seconds": getattr(document.timings, name) for name in type(document.timings).model_fields}
    return attributes


def seed_attributes(role: Role, label: str, arguments: Arguments | None, block: int | None = None) -> dict[str, Any]:
    """Attributes that an enqueued trial carries until it is run."""
    attributes: dict[str, Any] = {"role": role.value, "label": label}
    if arguments is not None:
        attributes["arguments"] = dict(arguments)
    if block is not None:
        attributes["block"] = block
    return attributes
