"""Configurations measured before: to be reused as they are, or to start a similar study well."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import cast

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from autotune.base.errors import UsageError
from autotune.spec import Arguments, LoadLevel, Slo, Workload
from autotune.store._database import Database
from autotune.store._rows import as_json, as_utc
from autotune.store._schema import Json, MeasuredRow
from autotune.store.records import Circumstances, MeasuredConfiguration

_MEASURED = "measured"
_INFEASIBLE = "infeasible"
_LOAD, _AIM = "load", "aim"
"""Keys of circumstances in a row's document: the table has no columns for them."""


def configuration_fingerprint(circumstances: Circumstances, arguments: Arguments) -> str:
    """Equal exactly when GPU, driver, engine, model, workload, objective, load and arguments are.

    Names and descriptions of workloads do not count, nor the order of arguments or SLO targets.
    """
    document: dict[str, object] = {
        "gpu": circumstances.gpu,
        "driver": circumstances.driver,
        "engine": [circumstances.engine_kind, circumstances.engine_version],
        "model": [circumstances.model, circumstances.model_revision],
        "workload": _traffic(circumstances.workload),
        "slo": circumstances.slo.to_mapping(),
        "arguments": dict(arguments),
    }
    if circumstances.load is not None:
        document["load"] = _spec_json(circumstances.load)
    if circumstances.aim:
        document["aim"] = circumstances.aim
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SimilarConfiguration:
    """A configuration that did well in like circumstances; ``likeness`` is 0..1, 1 for the same ones."""

    measured: MeasuredConfiguration
    likeness: float


class MeasuredConfigurations:
    """The table of measured configurations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, measured: MeasuredConfiguration) -> None:
        """Keep what a configuration did; a repeat is one more row."""
        self._database.write(lambda session: session.add(_row(measured)))

    def find(self, circumstances: Circumstances, arguments: Arguments) -> list[MeasuredConfiguration]:
        """What exactly this configuration did under exactly these circumstances, newest first."""
        fingerprint = configuration_fingerprint(circumstances, arguments)

        def work(session: Session) -> list[MeasuredConfiguration]:
            query = select(MeasuredRow).where(MeasuredRow.fingerprint == fingerprint).order_by(MeasuredRow.id.desc())
            return list(_records(session.scalars(query)))

        return self._database.read(work)

    def similar(
        self,
        gpu: str,
        model_family: str,
        workload: Workload,
        *,
        engine_kind: str,
        model: str | None = None,
        slo: Slo | None = None,
        limit: int = 8,
    ) -> list[SimilarConfiguration]:
        """The best configurations of the most similar earlier studies, for a warm start.

        Likeness weighs, in falling order, the GPU, the model and its family, the traffic, and the objective; a
        figure of another GPU counts only with the model's family. Figures of unlike circumstances cannot be
        compared, so the best of each kind of circumstances come in turn. Equal arguments come once. Simulated
        engines never advise real ones.
        """
        groups: dict[str, list[MeasuredConfiguration]] = {}
        for one in self.history(engine_kind=engine_kind):
            if one.outcome == _MEASURED and one.output_tokens_per_s:
                groups.setdefault(_circumstances_key(one.circumstances), []).append(one)
        ranked: dict[float, list[list[MeasuredConfiguration]]] = {}
        for group in groups.values():
            likeness = _likeness(group[0].circumstances, gpu, model_family, workload, model, slo)
            if likeness > 0:
                group.sort(key=lambda m: m.output_tokens_per_s or 0.0, reverse=True)
                ranked.setdefault(likeness, []).append(group)
        in_order = (
            SimilarConfiguration(one, likeness)
            for likeness in sorted(ranked, reverse=True)
            for one in _in_turn(ranked[likeness])
        )
        return list(_first_of_each(in_order, limit))

    def history(
        self, *, engine_kind: str, gpu: str | None = None, outcomes: Iterable[str] = (_MEASURED, _INFEASIBLE)
    ) -> list[MeasuredConfiguration]:
        """Everything measured on an engine of this kind (and this GPU), oldest first: material for learned models."""

        def work(session: Session) -> list[MeasuredConfiguration]:
            query = select(MeasuredRow).where(
                MeasuredRow.engine_kind == engine_kind, MeasuredRow.outcome.in_(list(outcomes))
            )
            if gpu is not None:
                query = query.where(MeasuredRow.gpu == gpu)
            return list(_records(session.scalars(query.order_by(MeasuredRow.id))))

        return self._database.read(work)


def _traffic(workload: Workload) -> Json:
    return {key: value for key, value in _spec_json(workload).items() if key not in {"name", "description"}}


def _spec_json(spec: BaseModel) -> Json:
    """JSON that pydantic reads back to an equal model: an infinite burstiness becomes the word ``inf``."""
    dumped: Json = spec.model_dump(mode="json")
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in dumped.items()
    }


def _circumstances_key(circumstances: Circumstances) -> str:
    return configuration_fingerprint(circumstances, {})


def _likeness(
    other: Circumstances, gpu: str, model_family: str, workload: Workload, model: str | None, slo: Slo | None
) -> float:
    same_gpu = other.gpu == gpu
    same_family = other.model_family == model_family
    if not (same_gpu or same_family):
        return 0.0
    points = 8.0 * same_gpu + 3.0 * same_family + 2.0 * (model is not None and other.model == model)
    points += 2.0 * (_traffic(other.workload) == _traffic(workload))
    points += 1.0 * (slo is not None and other.slo.to_mapping() == slo.to_mapping())
    return points / 16.0


def _in_turn(groups: list[list[MeasuredConfiguration]]) -> Iterator[MeasuredConfiguration]:
    return (one for one in chain.from_iterable(zip_longest(*groups)) if one is not None)


def _first_of_each(found: Iterable[SimilarConfiguration], limit: int) -> Iterator[SimilarConfiguration]:
    seen: set[str] = set()
    for one in found:
        key = json.dumps(dict(one.measured.arguments), sort_keys=True)
        if len(seen) >= limit:
            return
        if key not in seen:
            seen.add(key)
            yield one


def _row(measured: MeasuredConfiguration) -> MeasuredRow:
    c = measured.circumstances
    load = {} if c.load is None else {_LOAD: _spec_json(c.load)}
    aim = {_AIM: c.aim} if c.aim else {}
    return MeasuredRow(
        fingerprint=configuration_fingerprint(c, measured.arguments),
        gpu=c.gpu,
        driver=c.driver,
        engine_kind=c.engine_kind,
        engine_version=c.engine_version,
        model=c.model,
        model_revision=c.model_revision,
        model_family=c.model_family,
        workload=_spec_json(c.workload),
        slo=_spec_json(c.slo),
        arguments=as_json(measured.arguments),
        outcome=measured.outcome,
        reason=measured.reason,
        capacity_rps=measured.capacity_rps,
        output_tokens_per_s=measured.output_tokens_per_s,
        requests=measured.requests,
        document=as_json({**measured.document, **load, **aim}),
        study=measured.study,
        trial_number=measured.trial_number,
        recorded_at=measured.recorded_at,
    )


def _records(rows: Iterable[MeasuredRow]) -> Iterator[MeasuredConfiguration]:
    """Without rows of traffic that cannot be had any more: a dataset whose file is gone, or has changed."""
    for row in rows:
        with contextlib.suppress(ValidationError, UsageError):
            yield _record(row)


def _record(row: MeasuredRow) -> MeasuredConfiguration:
    load = row.document.get(_LOAD)
    return MeasuredConfiguration(
        circumstances=Circumstances(
            gpu=row.gpu,
            driver=row.driver,
            engine_kind=row.engine_kind,
            engine_version=row.engine_version,
            model=row.model,
            model_revision=row.model_revision,
            model_family=row.model_family,
            workload=Workload.model_validate(row.workload),
            slo=Slo.model_validate(row.slo),
            load=None if load is None else LoadLevel.model_validate(load),
            aim=str(row.document.get(_AIM, "")),
        ),
        arguments=cast("dict[str, bool | int | float | str]", row.arguments),
        outcome=row.outcome,
        study=row.study,
        trial_number=row.trial_number,
        reason=row.reason,
        capacity_rps=row.capacity_rps,
        output_tokens_per_s=row.output_tokens_per_s,
        requests=row.requests,
        document={key: value for key, value in row.document.items() if key not in (_LOAD, _AIM)},
        recorded_at=as_utc(row.recorded_at),
    )
