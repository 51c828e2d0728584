"""What the end of a process tells when no statement of the log does: codes, signals, silence, the launcher's words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.engine.diagnosis._lines import Level, Line
from autotune.engine.diagnosis._milestones import Milestones
from autotune.engine.failure import Cause, Failure, FailureKind, Phase

_LAUNCHER = re.compile(r"^\[(?:launcher|supervisor|autotune)\] (?P<said>.*)")
_LAUNCHER_EXIT = re.compile(
    r"(?:exited|ended|died|returned)\b.*?(?:code|status)[ =:]*(?P<code>-?\d+)(?:.*?after (?P<seconds>[\d.]+) ?s)?"
)
_LAUNCHER_SAYS: tuple[tuple[Cause, re.Pattern[str], str], ...] = (
    (
        Cause.ENGINE_HANG,
        re.compile(r"no (?:token|progress|output|answer)|0 tok/s|hang|hung|stuck|watchdog", re.IGNORECASE),
        "Requests were open and no token flowed: start the engine again, and if it hangs again leave this setting out.",
    ),
    (
        Cause.STARTUP_TIMEOUT,
        re.compile(
            r"not ready (?:after|within|in)|(?:start|ready|readiness|launch)\w* .*(?:deadline|time(?:d )?-?out)"
            r"|still (?:starting|loading)|gave up|giving up|killed after|deadline|time(?:d )?-?out",
            re.IGNORECASE,
        ),
        "The engine was not ready in time: raise the start deadline, or start again with the caches that are warm by"
        " now.",
    ),
    (
        Cause.PORT_IN_USE,
        re.compile(r"port \d+ .*(?:foreign|another|other|belongs|taken|in use)|foreign server", re.IGNORECASE),
        "Another server answers on this port: start again on a fresh port.",
    ),
    (
        Cause.GPU_MEMORY_BUSY,
        re.compile(
            r"GPU memory .*(?:busy|held|taken|not (?:back|returned|freed)|before (?:the )?start)", re.IGNORECASE
        ),
        "Another process holds GPU memory: find it and end it before the next start.",
    ),
)
_STATS = re.compile(
    r"(?:Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, )?Avg generation throughput: (?P<tokens>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs?, (?:Swapped: \d+ reqs?, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs?"
)
_DEATH = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|EngineCore hit an exception"
    r"|WorkerProc hit an exception"
    r"|Engine core initialization failed|EngineDeadError|is already dead, terminating|engine core exited unexpectedly"
    r"|Engine process (?:failed to start|\(pid \d+\) died)|died unexpectedly|^\S+(?: \w+)*: error: |^Killed$|^Aborted\b"
    r"|^Segmentation fault|^Bus error|Fatal Python error|^Illegal instruction"
)
_TALK = re.compile(
    r"^\[(?:launcher|supervisor|autotune)\]|warnings\.warn|resource_tracker|nanobind"
    r"| - (?:leaked|\.\.\.)"
)
_WAITS_FOR_WORKERS = re.compile(r"No available shared memory broadcast block found in \d+ second")
_CHILD_EXIT = re.compile(r"(?:Failed core proc\(s\): \{[^}]*?: |exit code:? )(?P<code>-\d+)")
_READY_TIMEOUT_SECONDS = 570.0
"""Just below the 600 s for which vLLM's front end waits for its engine."""

_HOST_OOM_ADVICE = (
    "The kernel's out-of-memory killer ended it, for want of the host's RAM and not the GPU's: look at dmesg and at the"
    " container's memory limit."
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process ended. ``code`` is normalised: negative for a signal."""

    exited: bool
    code: int | None
    ready: bool
    seconds: float | None

    @property
    def killed(self) -> bool:
        """True when SIGKILL or SIGTERM ended it."""
        return self.code in {-signal.SIGKILL, -signal.SIGTERM}

    @classmethod
    def of(cls, lines: Sequence[Line], milestones: Milestones, exit_code: int | None, was_ready: bool) -> Ending:
        """Join what the supervisor knows with what ``[launcher]`` lines say."""
        code, seconds = exit_code, None
        for line in lines:
            said = _LAUNCHER.match(line.raw.strip())
            told = _LAUNCHER_EXIT.search(said["said"]) if said is not None else None
            if told is not None:
                code = int(told["code"]) if code is None else code
                seconds = float(told["seconds"]) if told["seconds"] else seconds
        exited = code is not None
        if code is not None and code > 128:
            code = 128 - code
        return cls(exited, code, was_ready or milestones.ready_number is not None, seconds)


def launcher_statement(lines: Sequence[Line], *, ready: bool) -> tuple[Cause, Line, str] | None:
    """What a supervising process wrote into the log about the engine, if it names a cause."""
    for line in lines:
        said = _LAUNCHER.match(line.raw.strip())
        if said is None:
            continue
        for cause, pattern, advice in _LAUNCHER_SAYS:
            if pattern.search(said["said"]):
                # Who runs out of patience with an engine that was ready speaks of a hang.
                late = ready and cause is Cause.STARTUP_TIMEOUT
                return (Cause.ENGINE_HANG, line, _LAUNCHER_SAYS[0][2]) if late else (cause, line, advice)
    return None


def shows_death(lines: Sequence[Line], milestones: Milestones) -> bool:
    """True when the log itself shows that the engine died, at whatever level, and did not come back."""
    ready = milestones.ready_number
    for line in lines:
        if line.level in {Level.DEBUG, Level.INFO} or (ready is not None and line.number < ready):
            continue
        if _DEATH.search(line.text.strip()):
            return True
    return False


def stuck_line(lines: Sequence[Line], *, once: bool) -> Line | None:
    """The last of the statistics that show open requests and no tokens, when they end the log.

    ``once``: somebody lost patience and killed a ready engine, so that one such line, or workers that are mute, do.
    """
    wanted = 1 if once else 2
    count = 0
    last: Line | None = None
    for line in reversed(lines):
        stats = _STATS.search(line.text)
        if stats is None:
            continue
        if stats["waiting"] == "0" and stats["running"] == "0":
            break
        if float(stats["tokens"]) > 0 or float(stats["prompt"] or 0) > 0:
            break
        last = last or line
        count += 1
        if count >= wanted:
            return last
    if not once:
        return None
    return next((line for line in reversed(lines) if _WAITS_FOR_WORKERS.search(line.text)), None)


def by_ending(
    lines: Sequence[Line], ending: Ending, oom_kills: int | None, milestones: Milestones, *, root_known: bool
) -> Failure | None:
    """Judge a signal that ended the engine or one of its processes; None when the code says nothing."""
    phase = Phase.SERVING if ending.ready else milestones.last_phase
    child = next((match for match in (_CHILD_EXIT.search(line.text) for line in reversed(lines)) if match), None)
    child_line = next((line for line in reversed(lines) if _CHILD_EXIT.search(line.text)), None)
    killed_word = next((line for line in lines if line.level is Level.PLAIN and line.text.strip() == "Killed"), None)
    code = int(child["code"]) if child is not None else ending.code
    deciding = child_line or killed_word or _last(lines)
    shown = deciding.text.strip() if deciding is not None else ""
    if root_known and child is None:
        return None
    if code == -signal.SIGKILL or (killed_word is not None and child is None):
        if oom_kills == 0 or (ending.ready and oom_kills is None and child is None and killed_word is None):
            return _crash(
                phase, shown, "A process of the engine was killed from outside, not for want of memory: start it again."
            )
        return Failure(Cause.HOST_OOM, FailureKind.FAULT, phase, shown, _HOST_OOM_ADVICE)
    if code == -signal.SIGILL:
        advice = "This processor lacks instructions that the build uses: install a build of vLLM for this machine."
        return Failure(Cause.UNSUPPORTED_HARDWARE, FailureKind.FAULT, phase, shown, advice, environment=True)
    if code == -signal.SIGBUS:
        advice = "Shared memory ran out: start the container with a larger --shm-size or --ipc=host."
        return Failure(Cause.NCCL_DISTRIBUTED, FailureKind.FAULT, phase, shown, advice)
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        return _crash(
            phase, shown, f"{name} ended the engine: start it again, and if it crashes again leave this setting out."
        )
    if ending.code in {126, 127}:
        advice = "The command could not be run: install vLLM, or name it with --vllm-command."
        return Failure(Cause.DEPENDENCY_ERROR, FailureKind.FAULT, Phase.LAUNCH, shown, advice, environment=True)
    return None


def by_silence(lines: Sequence[Line], ending: Ending, milestones: Milestones, *, timed_out: bool) -> Failure:
    """Judge an end of which nothing in the log says why."""
    notice = next((line for line in lines if line.level is not Level.INFO and _DEATH.search(line.text.strip())), None)
    told = (line for line in reversed(lines) if line.text.strip() and not _TALK.search(line.raw))
    last = notice or next(told, None)
    shown = last.text.strip() if last is not None else ""
    if took_too_long(lines, ending) or (timed_out and not ending.ready):
        return Failure(
            Cause.STARTUP_TIMEOUT,
            FailureKind.FAULT,
            milestones.last_phase,
            shown,
            "It was still starting when its time was over: raise the start deadline, or start again with the caches"
            " that are"
            " warm by now.",
        )
    if ending.code == 2 and milestones.last_phase in {Phase.LAUNCH, Phase.CONFIG}:
        advice = "vLLM refused its arguments: compare them with vllm serve --help=all."
        return Failure(Cause.INVALID_CONFIG, FailureKind.INFEASIBLE, Phase.CONFIG, shown, advice)
    if ending.ready:
        return _crash(Phase.SERVING, shown, "The engine ended by itself while serving: start it again once.")
    advice = "The log does not say why it ended: run the command by hand with VLLM_LOGGING_LEVEL=DEBUG."
    return Failure(Cause.UNKNOWN, FailureKind.FAULT, milestones.last_phase, shown, advice)


def _crash(phase: Phase, line: str, advice: str) -> Failure:
    return Failure(Cause.ENGINE_CRASH, FailureKind.FAULT, phase, line, advice)


def _last(lines: Sequence[Line]) -> Line | None:
    return next((line for line in reversed(lines) if line.text.strip()), None)


def took_too_long(lines: Sequence[Line], ending: Ending) -> bool:
    """True for a start of about the time for which vLLM's front end waits, or longer."""
    return not ending.ready and _seconds(lines, ending) >= _READY_TIMEOUT_SECONDS


def _seconds(lines: Sequence[Line], ending: Ending) -> float:
    """How long the process lived: as told, or between the first and the last time stamp."""
    if ending.seconds is not None:
        return ending.seconds
    stamps = [line.stamp for line in lines if line.stamp]
    if len(stamps) < 2:
        return 0.0
    first, last = (datetime.strptime(f"2000-{stamp}", "%Y-%m-%d %H:%M:%S") for stamp in (stamps[0], stamps[-1]))
    return (last - first).total_seconds()
