"""Keeps what trials produce: the store, and the dashboard's notes, pictures and files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from autotune.engine import Failure, end_orphan, find_orphans
from autotune.search.context import StudyContext
from autotune.search.events import StudyObserver
from autotune.search.record import OptunaRecord
from autotune.store import (
    Circumstances,
    FailureRecord,
    MeasuredConfiguration,
    ProbeRecord,
    Store,
    StudyRecord,
    TrialRecord,
)
from autotune.store.result import Outcome, ProbeDocument, StudyDocument, TrialDocument
from autotune.trial import TrialOrder


class DashboardPages(Protocol):
    """What optuna-dashboard shows beside the figures: markdown notes and Plotly pictures by name."""

    def trial_note(self, trial: TrialDocument) -> str:
        """A readable summary of one trial."""
        ...

    def study_note(self, study: StudyDocument) -> str:
        """The state of the study."""
        ...

    def pictures(self, study: StudyDocument) -> Mapping[str, object]:
        """Plotly figures of the study."""
        ...


class Keeper:
    """Keeps what trials produce in the store, in one transaction per finished probe."""

    def __init__(
        self,
        store: Store,
        context: StudyContext,
        record: OptunaRecord,
        circumstances: Circumstances,
        pages: DashboardPages,
    ) -> None:
        self._pages = pages
        self._store = store
        self._context = context
        self._record = record
        self._circumstances = circumstances
        self._study = context.spec.name
        store.add_study(
            StudyRecord(
                name=self._study,
                definition=context.spec.model_dump(mode="json"),
                fingerprints={"space": context.space.fingerprint(), "study": context.spec.fingerprint()},
                engine_kind=context.engine.kind.value,
                engine_version=context.engine.version,
            )
        )

    def end_orphans(self, observer: StudyObserver) -> None:
        """End engines of this study that a killed run left behind; name those of others."""
        for orphan in find_orphans():
            if orphan.study in ("", self._study):
                end_orphan(orphan)
                observer.notice(f"Ended an engine (pid {orphan.pid}) that a killed run of this study left behind.")
            else:
                observer.notice(
                    f"Study '{orphan.study}' left an engine behind (pid {orphan.pid}); 'autotune doctor' ends it."
                )

    def keep_probe(self, order: TrialOrder, probe: ProbeDocument) -> None:
        """Store a finished probe; on disk when this returns."""
        self._begin(order)
        self._store.save_probe(
            self._study,
            ProbeRecord(
                trial_number=order.number,
                index=probe.index,
                purpose=probe.purpose,
                level={"loop": probe.loop, "rate": probe.rate, "concurrency": probe.concurrency},
                started=0.0,
                ended=probe.duration_s,
                requests=probe.requests,
                failed=probe.failed,
                misses={"slo": probe.misses},
                percentiles={"latency": {"50": probe.p50_latency_s, "99": probe.p99_latency_s}},
                summary=probe.model_dump(mode="json", exclude={"telemetry"}),
                telemetry=dict(probe.telemetry),
                verdict=probe.decision,
                valid=probe.valid,
                invalid_reason=probe.invalid_reason,
            ),
        )

    def keep_failure(self, order: TrialOrder, failure: Failure) -> None:
        """Store why an engine failed."""
        self._begin(order)
        self._store.add_failure(
            self._study,
            FailureRecord(
                trial_number=order.number,
                cause=failure.cause.value,
                kind=failure.kind.value,
                phase=failure.phase.value,
                line=failure.line[:2000],
                advice=failure.advice,
                arguments=order.arguments,
            ),
        )

    def keep_trial(self, document: TrialDocument) -> None:
        """Store a finished trial, its note and its files for the dashboard."""
        timings: Mapping[str, float] = document.timings.model_dump()
        self._store.save_trial(
            self._study,
            TrialRecord(
                number=document.number,
                arguments=document.arguments,
                role=document.role.value,
                outcome=document.outcome.value,
                reason=document.reason,
                timings=timings,
                document=document.model_dump(mode="json", exclude={"probes"}),
                finished_at=datetime.now(UTC),
            ),
        )
        if document.launched and document.outcome is not Outcome.FAULT:
            self._store.measured.add(
                MeasuredConfiguration(
                    circumstances=self._circumstances,
                    arguments=document.arguments,
                    outcome=document.outcome.value,
                    study=self._study,
                    trial_number=document.number,
                    reason=document.reason,
                    capacity_rps=document.capacity_rps,
                    output_tokens_per_s=document.output_tokens_per_s,
                    requests=document.requests,
                    document=document.model_dump(mode="json", exclude={"probes"}),
                )
            )
        self._record.note(document.number, self._pages.trial_note(document))
        if document.launched:
            folder = self._context.folder.trial(document.number)
            for name, kind in (("engine.log", "text/plain"), ("requests.csv.gz", "application/gzip")):
                if (folder / name).exists():
                    self._record.attach(document.number, folder / name, kind)

    def keep_study(self, document: StudyDocument) -> None:
        """Show the study's state and pictures in the dashboard."""
        self._record.note(None, self._pages.study_note(document))
        for name, picture in self._pages.pictures(document).items():
            self._record.picture(name, picture)

    def _begin(self, order: TrialOrder) -> None:
        self._store.save_trial(
            self._study,
            TrialRecord(number=order.number, arguments=order.arguments, role=order.role.value),
        )
