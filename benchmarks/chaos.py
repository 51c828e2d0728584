"""Kills and stops the tuner, the server and the engine core at random moments, and looks at what is left.

Usage: python benchmarks/chaos.py [--rounds 200] [--seed 0] [--json]

Every round strikes one trial on a simulated engine whose engine core is a process of its own that holds GPU memory,
ignores SIGTERM and outlives its parent. At the end no process may be left, no finished trial lost, no trial charged for
another's corpse, and every failure must have been named right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from autotune.engine._marker import Marker
from autotune.engine._procfs import ProcessState, all_processes, command_of, environment_of, look_at, send_signal
from autotune.store import Store

TUNER = Path(__file__).parent / "_chaos_tuner.py"
STUDY = "chaos"
PHASES = ("starting", "serving", "stopping")
STRIKES = ("kill tuner", "kill server", "kill core", "stop server", "stop core")
PATIENCE_S = 60.0
LONGEST_DELAY_S = {"starting": 1.0, "serving": 0.5, "stopping": 0.2}
RIGHT: dict[tuple[str, str], frozenset[str]] = {
    ("kill server", "starting"): frozenset({"engine_crash"}),
    ("kill server", "serving"): frozenset({"engine_crash"}),
    ("kill core", "starting"): frozenset({"engine_crash"}),
    ("kill core", "serving"): frozenset({"engine_crash"}),
    ("stop server", "starting"): frozenset({"engine_hang"}),
    ("stop server", "serving"): frozenset({"engine_hang"}),
    ("stop core", "starting"): frozenset({"engine_hang", ""}),
    ("stop core", "serving"): frozenset({"engine_hang", ""}),
}
"""What a strike may be called. Empty: nothing failed, as after a stop was asked for, or where the simulated server goes
on beside a core that is held."""
BLURRED_S = 0.25
"""A strike this close to the end of a phase may have hit the next one."""


@dataclass
class Tally:
    """What was seen."""

    strikes: Counter[str] = field(default_factory=Counter)
    misnamed: list[str] = field(default_factory=list)
    unstruck_failures: list[str] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    slowest_clean_up_s: float = 0.0


def _right(strike: str, events: Sequence[Mapping[str, object]], at: float) -> frozenset[str]:
    """The causes that are right for a strike at that moment, by the phases that the tuner told."""
    hit = {str(events[0]["phase"])}
    for event in events[1:]:
        began = float(str(event["at"]))
        if began <= at - BLURRED_S:
            hit = {str(event.get("phase"))}
        elif began <= at + BLURRED_S:
            hit.add(str(event.get("phase")))
    return frozenset().union(*(RIGHT.get((strike, phase), frozenset({""})) for phase in hit))


class Victim:
    """A tuner in another process, whose events are read line by line."""

    def __init__(self, folder: Path, first: int, errors: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TUNER), str(folder), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        state = look_at(self.process.pid)
        assert state is not None
        self.identity = state.identity

    def event(self) -> dict[str, object]:
        """The next event; empty when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        document: dict[str, object] = json.loads(line) if line else {}
        return document

    def engine_processes(self) -> list[ProcessState]:
        """Living processes of its engines."""
        found = []
        for process in all_processes():
            marker = Marker.read(environment_of(process.identity.pid)) if process.alive else None
            if marker is not None and marker.tuner == self.identity:
                found.append(process)
        return found

    def server(self) -> ProcessState | None:
        """The engine's server: the leader that the tuner started."""
        return next((p for p in self.engine_processes() if p.parent == self.identity.pid), None)

    def core(self) -> ProcessState | None:
        """The engine core: what holds the memory."""
        return next(
            (p for p in self.engine_processes() if "autotune.simulator.child" in command_of(p.identity.pid)), None
        )

    def leave(self) -> None:
        """Have it finish its trial and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while self.event():
            pass
        self.process.wait(PATIENCE_S)


class Chaos:
    """The benchmark."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.tally = Tally()
        self._random = random.Random(seed)
        self._errors = (folder / "tuner.err").open("ab")
        self._victim = Victim(folder, 0, self._errors)
        self._trial = 0

    def round(self) -> None:
        """Strike one trial."""
        strike = self._random.choice(STRIKES)
        phase = self._random.choice(PHASES)
        delay = self._random.uniform(0.0, LONGEST_DELAY_S[phase])
        event = self._until(lambda e: e.get("phase") == phase)[-1]
        trial = int(str(event["trial"]))
        time.sleep(delay)
        name = f"{strike} while {phase}"
        self.tally.strikes[name] += 1
        if strike == "kill tuner":
            self._kill_tuner(trial)
            return
        struck = self._strike(strike)
        at = time.monotonic()
        event, *between = self._until(lambda e: e.get("phase") == "finished" and e.get("trial") == trial)[::-1]
        cause = str(event["cause"])
        right = frozenset({""}) if not struck else _right(strike, [{"phase": phase}, *between[::-1]], at)
        if cause not in right:
            self.tally.misnamed.append(f"trial {trial}: {name}: {cause}: {event['line']}")

    def _strike(self, strike: str) -> bool:
        target = self._victim.server() if strike.endswith("server") else self._victim.core()
        if target is None:
            return False
        return send_signal(target.identity, signal.SIGKILL if strike.startswith("kill") else signal.SIGSTOP)

    def _kill_tuner(self, trial: int) -> None:
        victim = self._victim
        os.kill(victim.identity.pid, signal.SIGKILL)
        victim.process.wait()
        while event := victim.event():
            self._note(event)
        began = time.monotonic()
        while victim.engine_processes() and time.monotonic() - began < PATIENCE_S:
            time.sleep(0.1)
        self.tally.slowest_clean_up_s = max(self.tally.slowest_clean_up_s, time.monotonic() - began)
        self._victim = Victim(self.folder, trial + 1, self._errors)

    def _until(self, wanted: Callable[[Mapping[str, object]], bool]) -> list[dict[str, object]]:
        """The events up to the wanted one."""
        events = []
        while event := self._victim.event():
            self._note(event)
            events.append(event)
            if wanted(event):
                return events
        raise SystemExit(f"the tuner ended by itself: see {self.folder / 'tuner.err'}")

    def _note(self, event: dict[str, object]) -> None:
        if event.get("phase") == "finished":
            self.tally.finished.add(int(str(event["trial"])))
            if event["cause"] in {"gpu_memory_busy", "port_in_use"}:
                self.tally.unstruck_failures.append(f"trial {event['trial']}: {event['cause']}: {event['line']}")
        if event.get("memory_returned") is False:
            self.tally.unstruck_failures.append(f"trial {event['trial']}: GPU memory did not come back")

    def conclude(self) -> dict[str, object]:
        """End the last tuner and look at what is left."""
        last = self._victim
        last.leave()
        deadline = time.monotonic() + PATIENCE_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        stored = {t.number for t in Store.open(f"sqlite:///{self.folder / 'chaos.db'}").trials(STUDY) if t.finished_at}
        lost = sorted(self.tally.finished - stored)
        figures = {
            "processes left": len(left),
            "finished trials lost": len(lost),
            "trials charged for a corpse": len(self.tally.unstruck_failures),
            "failures misnamed": len(self.tally.misnamed),
        }
        return {
            "strikes": dict(sorted(self.tally.strikes.items())),
            "finished_trials": len(self.tally.finished),
            "slowest_clean_up_after_a_killed_tuner_s": round(self.tally.slowest_clean_up_s, 2),
            "misnamed": self.tally.misnamed,
            "charged": self.tally.unstruck_failures,
            "goals": [{"name": name, "value": value, "goal": 0, "met": value == 0} for name, value in figures.items()],
        }

    def _left(self) -> list[ProcessState]:
        wanted = f"{STUDY}-{self.folder.name}"
        found = []
        for process in all_processes():
            marker = Marker.read(environment_of(process.identity.pid)) if process.alive else None
            if marker is not None and marker.study == wanted:
                found.append(process)
        return found


def main() -> int:
    """Run and print; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        chaos = Chaos(Path(name), options.seed)
        for number in range(options.rounds):
            chaos.round()
            if not options.json and sys.stderr.isatty():
                sys.stderr.write(f"\r{number + 1}/{options.rounds}")
        document = chaos.conclude()
    document["rounds"] = options.rounds
    document["wall_s"] = round(time.monotonic() - began, 1)
    goals = document["goals"]
    assert isinstance(goals, list)
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        for goal in goals:
            print(f"{goal['name']}: {goal['value']} (goal {goal['goal']}, {'met' if goal['met'] else 'missed'})")
        for line in (*chaos.tally.misnamed, *chaos.tally.unstruck_failures):
            print(line)
    return 0 if all(goal["met"] for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
