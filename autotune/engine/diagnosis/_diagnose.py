"""From a log and what the supervisor knows to a cause: the earliest root statement, judged in its phase."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.engine.diagnosis import _memory
from autotune.engine.diagnosis._ending import (
    Ending,
    by_ending,
    by_silence,
    launcher_statement,
    shows_death,
    stuck_line,
    took_too_long,
)
from autotune.engine.diagnosis._lines import Level, Line, read_lines
from autotune.engine.diagnosis._milestones import Milestones, read_milestones
from autotune.engine.diagnosis._rule import ENVIRONMENT_CAUSES, KIND_OF_CAUSE, Rule
from autotune.engine.diagnosis._rules import RULES
from autotune.engine.diagnosis._statements import Statement, read_statements
from autotune.engine.failure import Cause, Failure, FailureKind, Phase

_WRAPPERS = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineCore encountered|EngineDeadError"
    r"|Engine process (?:failed to start|\(pid \d+\) died)|Background loop (?:has errored|is not running|is stopped)"
    r"|Task finished unexpectedly|Engine loop (?:has died|is not running)|CancelledError|^KeyboardInterrupt|^SystemExit"
    r"|ProcessExitedException|^EngineCore (?:failed to start|hit an exception|encountered)|WorkerProc hit an exception"
    r"|Executor failed\.?$|^BrokenPipeError|^ConnectionResetError|^EOFError|Got fatal signal from worker"
    r"|is already dead, terminating|died unexpectedly|Frontend process failed|^ContextTerminated|^Process \w+:$"
    r"|Exception in ASGI application|^NoneType: None|See stack trace|exited unexpectedly|GeneratorExit"
    r"|^ClientDisconnect"
    r"|SubprocessException|^ChildFailedError|^EngineGenerateError: *$|Failed core proc|destroy_process_group"
    r"|resource_tracker"
    r"|CUDA kernel errors might be|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|^\[launcher\]"
    r"|hit an exception"
    r"|^Exception raised from \S+ at |^frame #\d+|^warnings\.warn|UserWarning|DeprecationWarning|FutureWarning"
)
_REFUSED_REQUEST = re.compile(
    r"maximum context length is|max_tokens must be|prompt .*(?:too long|longer than)|BadRequestError"
    r"|RequestValidationError|The model `[^`]*` does not exist|TemplateError|VLLMValidationError|HTTPException"
)
_SOUNDS_BAD = re.compile(
    r"error|fatal|\bwarn\b|not found|fail|kill|abort|segmentation|bus error|illegal|cannot|can't|could not|unable"
    r"|no such|denied|exception|terminate called|stopped|no space|not enough|undefined symbol",
    re.IGNORECASE,
)
"""Words without which a printed line is talk."""
_CONFIG_FRAMES = re.compile(
    r"vllm/(?:config|engine/arg_utils|entrypoints/(?:openai/)?(?:launchers/)?(?:cli_args|cli/serve))"
)
_REFUSALS = frozenset(
    {"ValueError", "AssertionError", "NotImplementedError", "TypeError", "ValidationError", "KeyError"}
)
_AFTER_STOP = frozenset(
    {
        Cause.OOM_WEIGHTS,
        Cause.OOM_ACTIVATION,
        Cause.OOM_KV_CACHE,
        Cause.OOM_CUDAGRAPH,
        Cause.OOM_RUNTIME,
        Cause.ENGINE_CRASH,
        Cause.ENGINE_HANG,
    }
)
"""Causes that still count when the stop was asked for, provided they came before it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the supervisor knows besides the log.

    ``exit_code`` is that of ``subprocess`` (negative for a signal) or of a shell (128 + signal); None while the process
    lives or when nobody knows. ``hung``: no token flowed while requests were open. ``timed_out``: the start's deadline
    passed. ``oom_kills``: kills by the kernel's out-of-memory killer meanwhile, None when unknown.
    """

    exit_code: int | None = None
    was_ready: bool = False
    stop_requested: bool = False
    hung: bool = False
    timed_out: bool = False
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    cause: Cause
    line: Line
    advice: str
    phase: Phase
    kind: FailureKind | None = None
    environment: bool | None = None


def diagnose(log: str, evidence: Evidence) -> Failure:
    """Say why an engine ended, hangs or did not start; cause ``none`` when nothing is wrong."""
    lines = read_lines(log)
    milestones = read_milestones(lines)
    ending = Ending.of(lines, milestones, evidence.exit_code, evidence.was_ready)
    stuck = stuck_line(lines, once=ending.ready and ending.killed and not evidence.stop_requested)
    statements = [s for s in read_statements(lines) if not _is_noise(s, serving=_serves(s, milestones, ending))]
    finding = _find(_relevant(statements, milestones), statements, milestones, ending)
    if evidence.hung:
        # A server that went mute because its engine died tells of the death.
        root = finding if finding is not None and shows_death(lines, milestones) else None
        return _hang(lines, milestones, stuck) if root is None else _failure(root)
    if evidence.stop_requested:
        before_stop = finding is not None and (
            milestones.stopping_number is None or finding.line.number < milestones.stopping_number
        )
        if finding is not None and before_stop and finding.cause in _AFTER_STOP:
            return _failure(finding)
        told = launcher_statement(lines, ready=ending.ready)
        if told is not None:
            return _told(told, milestones)
        if took_too_long(lines, ending):
            return by_silence(lines, ending, milestones, timed_out=True)
        return _hang(lines, milestones, stuck) if stuck is not None else _none(milestones)
    failed = ending.exited or evidence.timed_out or shows_death(lines, milestones)
    if finding is not None and (failed or _uncaught(finding, milestones, lines, ready=ending.ready)):
        return _failure(finding)
    told = launcher_statement(lines, ready=ending.ready)
    if told is not None:
        return _told(told, milestones)
    if stuck is not None:
        return _hang(lines, milestones, stuck)
    unmatched = _first_unmatched(_relevant(statements, milestones), milestones, ready=ending.ready)
    if not failed:
        if unmatched is not None and _uncaught(unmatched, milestones, lines, ready=ending.ready):
            return _failure(unmatched)
        return _none(milestones)
    by_exit = by_ending(lines, ending, evidence.oom_kills, milestones, root_known=unmatched is not None)
    if by_exit is not None:
        return by_exit
    if unmatched is not None:
        return _failure(unmatched)
    return by_silence(lines, ending, milestones, timed_out=evidence.timed_out)


def _serves(statement: Statement, milestones: Milestones, ending: Ending) -> bool:
    return ending.ready or milestones.phase_at(statement.number) is Phase.SERVING


def _is_noise(statement: Statement, *, serving: bool) -> bool:
    """True for what only repeats a failure, and for requests that were refused while serving."""
    head = f"{statement.type}: {statement.texts[0]}" if statement.type else statement.texts[0]
    if not statement.type and not statement.lines[0].level and not _SOUNDS_BAD.search(head):
        return True
    return statement.request_only or bool(_WRAPPERS.search(head) or (serving and _REFUSED_REQUEST.search(head)))


def _relevant(statements: Sequence[Statement], milestones: Milestones) -> Sequence[Statement]:
    """What came after readiness, if anything did: what came before was survived."""
    ready = milestones.ready_number
    if ready is None:
        return statements
    after = [statement for statement in statements if statement.number > ready and statement.type]
    return [s for s in statements if s.number > ready] if after else statements


def _find(
    relevant: Sequence[Statement], statements: Sequence[Statement], milestones: Milestones, ending: Ending
) -> _Finding | None:
    """The earliest statement that a specific rule knows, or else a broad one."""
    for weak in (False, True):
        for statement in relevant:
            finding = _match(statement, statements, milestones, ending, weak=weak)
            if finding is not None:
                return finding
    return None


def _match(
    statement: Statement, statements: Sequence[Statement], milestones: Milestones, ending: Ending, *, weak: bool
) -> _Finding | None:
    phase = milestones.phase_at(statement.number)
    ready = ending.ready or phase is Phase.SERVING
    if not weak and _memory.is_out_of_memory(statement):
        return _out_of_memory(statement, statements, phase, ready=ready)
    if weak and (ready or not (statement.type in _REFUSALS or ": error: " in statement.message or statement.type)):
        return None
    prefix = f"{statement.type}: " if statement.type else ""
    # The first line of a message says what happened; boilerplate and hints follow it.
    for text in dict.fromkeys((prefix + statement.texts[0], prefix + statement.message)):
        for candidate in RULES:
            if candidate.weak is weak and (match := candidate.pattern.search(text)) is not None:
                return _by_rule(candidate, match, statement, text, phase, ready=ready)
    return None


def _by_rule(
    rule: Rule, match: re.Match[str], statement: Statement, whole: str, phase: Phase, *, ready: bool
) -> _Finding:
    index = whole.count("\n", 0, match.start())
    deciding = statement.lines[min(index, len(statement.lines) - 1)]
    shown = Phase.KV_CACHE if rule.cause is Cause.OOM_KV_CACHE else Phase.SERVING if ready else phase
    return _Finding(rule.cause, deciding, rule.advise(match), shown, rule.kind, rule.environment)


def _out_of_memory(statement: Statement, statements: Sequence[Statement], phase: Phase, *, ready: bool) -> _Finding:
    same = [other for other in statements if other.number >= statement.number and _memory.is_out_of_memory(other)]
    others = _memory.held_by_others(statement.message)
    stage = _memory.stage_of(same, phase, ready=ready)
    if others is not None:
        advice = f"Other processes held {others:.1f} GiB of the GPU's memory: end them, then start again."
        return _Finding(Cause.GPU_MEMORY_BUSY, statement.lines[0], advice, _memory.PHASE_OF_STAGE[stage])
    advice = _memory.advise(stage, statement.message)
    return _Finding(stage, statement.lines[0], advice, _memory.PHASE_OF_STAGE[stage])


def _uncaught(finding: _Finding, milestones: Milestones, lines: Sequence[Line], *, ready: bool) -> bool:
    """Nobody told how the process ended: whether the statement ended it; not so if the engine got ready later."""
    ready_number = milestones.ready_number
    if ready_number is not None and ready_number > finding.line.number:
        return False
    if ready:
        return False
    # A start that went on after the statement survived it.
    return not any(n > finding.line.number for n in milestones.numbers) or finding.line.level >= Level.ERROR


def _first_unmatched(statements: Iterable[Statement], milestones: Milestones, *, ready: bool) -> _Finding | None:
    """The earliest exception that no rule knows: judged by where it was raised."""
    for statement in statements:
        if not statement.type:
            continue
        phase = milestones.phase_at(statement.number)
        if ready or phase is Phase.SERVING:
            advice = (
                "The engine crashed under load: start it again once, and if it crashes again leave this setting out."
            )
            return _Finding(Cause.ENGINE_CRASH, statement.lines[0], advice, Phase.SERVING)
        refused = any(_CONFIG_FRAMES.search(frame.path) for frame in statement.frames) or (
            phase in {Phase.LAUNCH, Phase.CONFIG} and "ValidationError" in statement.type
        )
        if refused and statement.type in _REFUSALS:
            deciding = statement.lines[1] if "validation error" in statement.texts[0] and statement.lines[1:] else None
            advice = "vLLM refused this combination of settings: change or drop the one that the line names."
            return _Finding(Cause.INVALID_CONFIG, deciding or statement.lines[0], advice, Phase.CONFIG)
        advice = "The engine crashed while starting: see its log, start it again once, then leave this setting out."
        return _Finding(Cause.ENGINE_CRASH, statement.lines[0], advice, phase)
    return None


def _failure(finding: _Finding) -> Failure:
    kind = finding.kind or KIND_OF_CAUSE.get(finding.cause, FailureKind.FAULT)
    environment = finding.cause in ENVIRONMENT_CAUSES if finding.environment is None else finding.environment
    return Failure(finding.cause, kind, finding.phase, _shown(finding.line), finding.advice, environment)


def _hang(lines: Sequence[Line], milestones: Milestones, stuck: Line | None) -> Failure:
    line = stuck or next((entry for entry in reversed(lines) if entry.text.strip()), None)
    return Failure(
        Cause.ENGINE_HANG,
        FailureKind.FAULT,
        Phase.SERVING if milestones.last_phase is Phase.LAUNCH else milestones.last_phase,
        _shown(line) if line is not None else "",
        "Requests were open and no token flowed: start the engine again, and if it hangs again leave this setting out.",
    )


def _told(told: tuple[Cause, Line, str], milestones: Milestones) -> Failure:
    cause, line, advice = told
    return _failure(_Finding(cause, line, advice, milestones.last_phase))


def _none(milestones: Milestones) -> Failure:
    return Failure(Cause.NONE, FailureKind.NONE, milestones.last_phase, "", "Nothing is wrong.")


def _shown(line: Line) -> str:
    return line.text.strip() or line.raw.strip()
