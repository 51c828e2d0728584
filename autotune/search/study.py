"""The loop of a study: baselines, proposals, confirmation, verdict; resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import Trial

from autotune.base.errors import EnvironmentProblemError, NoFeasibleConfigurationError
from autotune.engine.api import EngineKind
from autotune.engine.failure import Cause
from autotune.search.baselines import (
    Baseline,
    default_baseline,
    fitted_default,
    performance_modes,
)
from autotune.search.budget import SIMULATED_SEARCH_S, BudgetKeeper
from autotune.search.confirmation import (
    MOST_CONFIRMATIONS,
    Finalist,
    choose_finalists,
    configuration_key,
    confirmation_rounds,
    confirmations_left,
    first_round,
    is_settled,
    reference_trial,
    round_order,
)
from autotune.search.context import Refusal, StudyContext
from autotune.search.document import build_document
from autotune.search.earlier import EarlierStudies, without_launch
from autotune.search.events import StudyObserver, StudyPlan, TrialStarted
from autotune.search.executor import TrialExecutor
from autotune.search.faults import MAX_RETRIES, FaultRules
from autotune.search.mix import in_rounds, reference_of, with_relative
from autotune.search.objective import Aim, aim_of
from autotune.search.orders import BRIEF, make_order
from autotune.search.record import OptunaRecord, seed_attributes
from autotune.search.resume import take_up
from autotune.search.standing import standing_best
from autotune.search.verdict import conclude, deserves_another_round
from autotune.space import to_argv
from autotune.spec import Arguments
from autotune.store.result import Decision, Outcome, Role, StudyDocument, TrialDocument

IDLE_PROPOSALS_THAT_STOP = 25
"""Proposals in a row that needed no engine (known already or refused): the space is used up."""

PREDICTED_LABEL = "predicted"
SIMILAR_LABEL = "similar study"
"""Before the name of the study that a proposal comes from."""
SIMILAR_PROPOSALS = 2
SEARCH_SECONDS = "search_seconds"
"""Attribute of the Optuna study: wall seconds that its search took so far, in all runs."""


@dataclass
class StudyRun:
    """One run of a study, from wherever an earlier run stopped."""

    context: StudyContext
    record: OptunaRecord
    executor: TrialExecutor
    observer: StudyObserver
    keep: Callable[[TrialDocument], None]
    """Keeps a finished trial beyond its folder and Optuna."""
    earlier: EarlierStudies | None = None
    """What other studies measured; None where they are not to be asked."""
    aim: Aim = field(init=False)
    budget: BudgetKeeper = field(init=False)
    documents: dict[int, TrialDocument] = field(init=False)
    _faults: FaultRules = field(default_factory=FaultRules)
    _confirming: tuple[Sequence[Finalist], range] | None = None
    """Finalists and rounds, once the search is over."""

    def __post_init__(self) -> None:
        self.aim = aim_of(self.context.spec)
        self.documents = self.context.folder.read_trials()
        self.budget = BudgetKeeper(
            self.context.spec.budget, self._default_time_s(), before_s=float(self.record.attribute(SEARCH_SECONDS) or 0)
        )

    def _default_time_s(self) -> float | None:
        return SIMULATED_SEARCH_S if self.context.engine.kind is EngineKind.SIMULATED else None

    async def run(self) -> StudyDocument:
        """Run the study to its verdict; every finished trial is on disk before the next begins.

        Raises:
            NoFeasibleConfigurationError: nothing that was tried runs and holds the objective.
            EnvironmentProblemError: the same fault came again and again, or no engine could run at all.
        """
        take_up(self.context, self.record, self.documents, self.keep, self.observer)
        self.observer.planned(
            StudyPlan(
                baselines=self._most_baselines(),
                trials=self.budget.trials,
                confirmations=MOST_CONFIRMATIONS,
                resumed_trials=len(self.documents),
                expected_seconds=None,
            )
        )
        self._save()
        await self._run_waiting()
        reference = await self._run_default()
        await self._run_predicted()
        await self._run_modes(reference)
        await self._run_similar()
        await self._search()
        await self._confirm()
        return self._conclude()

    async def _run_waiting(self) -> None:
        while self.record.waiting():
            await self._run_asked(self._ask())

    # -- phases -----------------------------------------------------------------------------------

    async def _run_default(self) -> Arguments:
        """Measure the configuration to beat, and return its arguments."""
        fixed = self.context.spec.arguments
        default = await self._run_baseline(default_baseline(fixed))
        reference: Arguments = default.arguments
        if default.outcome is Outcome.INFEASIBLE:
            fitted = fitted_default(fixed, self.context.space.fixed)
            if fitted is not None:
                self.observer.notice(f"vLLM's defaults cannot run here ({default.reason}): {default.detail}")
                reference = (await self._run_baseline(fitted)).arguments
        return reference

    async def _run_modes(self, reference: Arguments) -> None:
        """Measured after what is predicted to be best, against which they are then briefly compared."""
        fixed = self.context.spec.arguments
        for mode in performance_modes(fixed, reference, self.context.knows_performance_modes):
            await self._run_baseline(mode)

    async def _run_baseline(self, baseline: Baseline) -> TrialDocument:
        known = next(
            (
                d
                for d in self.documents.values()
                if d.role is Role.BASELINE and d.label == baseline.label and d.outcome is not Outcome.FAULT
            ),
            None,
        )
        if known is not None:
            return known
        return await self._run_seeded(Role.BASELINE, baseline.label, baseline.arguments)

    async def _run_predicted(self) -> None:
        """What is predicted to be best: the sampler starts from a good incumbent."""
        for arguments in self.context.first_proposals():
            await self._propose(PREDICTED_LABEL, arguments)

    async def _run_similar(self) -> None:
        """What was best elsewhere."""
        if self.earlier is None:
            return
        tried = (d.label for d in self.documents.values() if d.role is Role.SEARCH)
        left = SIMILAR_PROPOSALS - sum(label.startswith(SIMILAR_LABEL) for label in tried)
        for study, arguments in self.earlier.advice(self.context.space):
            if left > 0 and self.context.refuse(arguments) is None:
                left -= await self._propose(f"{SIMILAR_LABEL} {study}", arguments)

    async def _propose(self, label: str, arguments: Arguments) -> bool:
        """Try a configuration before the sampler's own; False when it was tried already, or the budget is spent."""
        key = configuration_key(arguments)
        if self.budget.spent(self._proposals()):
            return False
        if any(configuration_key(d.arguments) == key for d in self.documents.values()):
            return False
        self.record.enqueue(self.context.space.params_of(arguments), seed_attributes(Role.SEARCH, label, arguments))
        await self._run_proposal()
        return True

    async def _search(self) -> None:
        while not self.budget.spent(self._proposals()):
            if self._idle() >= IDLE_PROPOSALS_THAT_STOP:
                self.observer.notice("The sampler proposes nothing new: the search ends early.")
                return
            if not self.budget.worth_going_on(self._merits()):
                self.observer.notice("One more trial is expected to add almost nothing to the best: the search ends.")
                return
            await self._run_proposal()

    def _idle(self) -> int:
        """Proposals since the last one that brought a figure or a failure of its own."""
        proposals = [d for _, d in sorted(self.documents.items(), reverse=True) if d.role is Role.SEARCH]
        return next((at for at, d in enumerate(proposals) if d.launched or d.reused_from), len(proposals))

    async def _confirm(self) -> None:
        finalists = choose_finalists(self.documents.values(), self.aim.score)
        start = first_round(finalists, self.documents.values())
        extra = start + confirmation_rounds(len(finalists))
        self._confirming = finalists, range(start, extra)
        for block in range(start, extra):
            await self._confirm_round(finalists, block)
        seen = in_rounds((d for d in self.documents.values() if d.block != extra), self.context.spec, self.aim)
        if deserves_another_round(seen, self.aim):
            self._confirming = finalists, range(start, extra + 1)
            await self._confirm_round(finalists, extra)

    async def _confirm_round(self, finalists: Sequence[Finalist], block: int) -> None:
        for finalist in round_order(finalists, block):
            if not is_settled(finalist, block, self.documents.values()):
                await self._run_seeded(Role.CONFIRMATION, finalist.label, finalist.arguments, block)

    # -- one trial --------------------------------------------------------------------------------

    async def _run_seeded(
        self, role: Role, label: str, arguments: Arguments, block: int | None = None
    ) -> TrialDocument:
        """Run one chosen configuration; a fault that is not the configuration's doing is retried."""
        for _ in range(MAX_RETRIES + 1):
            self.record.enqueue(self.context.space.params_of(arguments), seed_attributes(role, label, arguments, block))
            document = await self._run_asked(self._ask())
            if document.outcome is not Outcome.FAULT:
                return document
            self.observer.notice(f"Trial {document.number} met a fault ({document.reason}): {document.detail}")
        raise EnvironmentProblemError(
            f"{label or 'a configuration'}: failed {MAX_RETRIES + 1} times with {document.reason} ({document.detail}).",
            document.advice,
        )

    async def _run_proposal(self) -> TrialDocument:
        """Run what is enqueued or what the sampler proposes; after a fault again, as far as the rules allow it."""
        document = await self._run_asked(self._ask())
        while document.outcome is Outcome.FAULT and document.launched:
            left = self._faults.left(document.arguments) is not None
            self.observer.notice(
                f"Trial {document.number} met a fault ({document.reason}): {document.detail}. "
                + ("Its configuration is left." if left else "It is run again.")
            )
            if left:
                break
            self.record.enqueue(
                self.context.space.params_of(document.arguments),
                seed_attributes(Role.SEARCH, document.label, document.arguments),
            )
            document = await self._run_asked(self._ask())
        return document

    async def _run_asked(self, trial: Trial) -> TrialDocument:
        attributes: Mapping[str, Any] = trial.user_attrs
        role = Role(attributes.get("role", Role.SEARCH))
        given = attributes.get("arguments")
        arguments: Arguments = self.context.space.arguments(trial.params) if given is None else given
        document = self._without_engine(trial.number, role, arguments)
        if document is None:
            document = await self._launch(trial.number, role, arguments, attributes)
        else:
            document = document.model_copy(update={"label": str(attributes.get("label", ""))})
        document = document.model_copy(update={"params": dict(trial.params)})
        reference = reference_of([*self.documents.values(), document])
        document = with_relative(document, reference, self.context.spec, self.aim)
        self._settle(trial, document)
        return document

    def _without_engine(self, number: int, role: Role, arguments: Arguments) -> TrialDocument | None:
        """A proposal whose outcome is known already, or that would only fail."""
        if role is not Role.SEARCH:
            return None
        key = configuration_key(arguments)
        for known in self.documents.values():
            if (
                known.role is not Role.CONFIRMATION
                and known.outcome is not Outcome.FAULT
                and configuration_key(known.arguments) == key
            ):
                return without_launch(known, number, f"same configuration as trial {known.number}")
        if self.earlier is not None:
            reference = reference_trial(self.documents.values())
            found = self.earlier.result(number, arguments, reference, BRIEF)
            if found is not None:
                return found
        fault = self._faults.left(arguments)
        refusal = self.context.refuse(arguments) if fault is None else Refusal(fault, "left after its faults")
        if refusal is None:
            return None
        return TrialDocument(
            number=number,
            role=role,
            arguments=dict(arguments),
            outcome=Outcome.INFEASIBLE if fault is None else Outcome.FAULT,
            reason=refusal.reason,
            detail=refusal.detail,
            launched=False,
        )

    async def _launch(
        self, number: int, role: Role, arguments: Arguments, attributes: Mapping[str, Any]
    ) -> TrialDocument:
        best = self._best()
        trials = list(self.documents.values())
        order = make_order(self.context, self.aim, trials, best, number, role, arguments, attributes)
        self.observer.trial_started(
            TrialStarted(
                number=number,
                role=role.value,
                label=order.label,
                flags=" ".join(to_argv(arguments)) or "(no flags)",
                position=self._proposals(),
                total=self.budget.trials or 0,
                eta_seconds=self.budget.eta(
                    self._proposals(),
                    self._baselines_left(role) + self._confirmations_left(),
                    searching=self._confirming is None,
                ),
            )
        )
        started = time.monotonic()
        document = await self.executor.run(order)
        self.budget.note_duration(time.monotonic() - started)
        return document

    def _settle(self, trial: Trial, document: TrialDocument) -> None:
        """Put a trial's result on disk, then into Optuna, then into result.json; judge the faults."""
        self.context.folder.write_trial(document)
        self.documents[document.number] = document
        self.keep(document)
        self.record.tell(trial, document)
        if document.role is not Role.CONFIRMATION:
            self.record.set_attribute(SEARCH_SECONDS, self.budget.elapsed())
        lessons = self.context.learn(document)
        self._save()
        self.observer.trial_finished(document, self._best())
        for lesson in lessons:
            self.observer.notice(lesson)
        if not document.launched:
            return
        if document.reason == Cause.PROBES_VOID and (scale := self.executor.slow_down()) is not None:
            self.observer.notice(f"This machine is busy: the simulated clock now runs {scale:.3g} times real time.")
            return
        self._faults.note(document)

    def _ask(self) -> Trial:
        """The next trial. What was left counts as proposed, so that the sampler moves on to something else."""
        settled = sum(
            d.role is Role.SEARCH and (d.outcome is not Outcome.FAULT or not d.launched)
            for d in self.documents.values()
        )
        return self.record.ask(self.context.space.distributions(), settled + self._faults.count_left())

    # -- the state so far -------------------------------------------------------------------------

    def _proposals(self) -> int:
        """Proposals that an engine was started for."""
        return sum(
            d.role is Role.SEARCH and d.launched and d.outcome is not Outcome.FAULT for d in self.documents.values()
        )

    def _merits(self) -> list[float]:
        """Of what was measured so far, in the order of trials."""
        numbered = sorted(self.documents.items())
        return [
            self.aim.score.merit(d)
            for _, d in numbered
            if d.outcome is Outcome.MEASURED and d.role is not Role.CONFIRMATION and d.launched
        ]

    def _most_baselines(self) -> int:
        return 3 if self.context.knows_performance_modes else 1

    def _baselines_left(self, role: Role) -> int:
        """Baselines to run, the one that is about to begin included."""
        if role is not Role.BASELINE:
            return 0
        done = sum(d.role is Role.BASELINE and d.outcome is not Outcome.FAULT for d in self.documents.values())
        return max(1, self._most_baselines() - done)

    def _confirmations_left(self) -> int:
        """Before the finalists are known: of as many as there may be."""
        if self._confirming is None:
            return MOST_CONFIRMATIONS
        finalists, rounds = self._confirming
        return confirmations_left(finalists, rounds, list(self.documents.values()))

    def _best(self) -> TrialDocument | None:
        return standing_best(self.documents.values(), self.aim.score)

    def _save(self) -> StudyDocument:
        document = build_document(self.context, self.documents)
        document.write(self.context.folder.path)
        self.observer.saved(document)
        return document

    def _conclude(self) -> StudyDocument:
        document = build_document(self.context, self.documents)
        conclusion = conclude(document.trials, self.aim)
        document = document.model_copy(
            update={
                "verdict": conclusion.verdict,
                "best": conclusion.best,
                "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        )
        document.write(self.context.folder.path)
        self.observer.saved(document)
        self.observer.concluded(conclusion.verdict)
        if conclusion.verdict.decision is Decision.NO_FEASIBLE_CONFIGURATION:
            raise NoFeasibleConfigurationError(
                conclusion.verdict.text, "Relax the objective, shorten the workload, or use a bigger GPU."
            )
        return document
