"""Takes a study up where an earlier run left it: on this machine, or on another one that only its folder came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.search.context import StudyContext
from autotune.search.events import StudyObserver
from autotune.search.record import OptunaRecord, seed_attributes
from autotune.spec import Arguments
from autotune.store.result import Role, TrialDocument

_CARRIED = ("role", "label", "arguments", "block")


def take_up(
    context: StudyContext,
    record: OptunaRecord,
    documents: Mapping[int, TrialDocument],
    keep: Callable[[TrialDocument], None],
    observer: StudyObserver,
) -> None:
    """Make Optuna know what the folder holds, and queue what was interrupted.

    Args:
        context: of the study.
        record: its Optuna study; may know nothing of it.
        documents: the finished trials in its folder, by number.
        keep: keeps a finished trial beyond its folder and Optuna.
        observer: told of what was taken over or is run again.
    """
    for finished in documents.values():
        context.learn(finished)
    if documents and not record.trials():
        _restore(context, record, documents, keep)
        observer.notice(f"{len(documents)} trials of the study's folder are new to the database: taken over.")
    for stale in record.stale():
        document = documents.get(stale.number)
        if document is not None:
            keep(document)
            record.tell(record.reopened(stale), document)
            continue
        record.fail(stale.number)
        attributes = {key: value for key, value in stale.user_attrs.items() if key in _CARRIED}
        record.enqueue(stale.params, attributes or seed_attributes(Role.SEARCH, "", None))
        observer.notice(f"Trial {stale.number} was interrupted; it is run again.")


def _restore(
    context: StudyContext,
    record: OptunaRecord,
    documents: Mapping[int, TrialDocument],
    keep: Callable[[TrialDocument], None],
) -> None:
    """Tell Optuna all trials under their own numbers; a number without a document was interrupted."""
    for number in range(max(documents) + 1):
        document = documents.get(number)
        arguments: Arguments = {} if document is None else document.arguments
        params = document.params if document is not None and document.params else None
        record.enqueue(params or context.space.params_of(arguments), {})
        trial = record.ask(context.space.distributions(), number)
        if document is None:
            record.fail(trial.number)
        else:
            keep(document)
            record.tell(trial, document)
