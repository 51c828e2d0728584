"""A stand-in for vLLM's engine core process: it holds GPU memory, ignores SIGTERM, and outlives a killed parent.

Run as ``python -m autotune.simulator.child FOLDER BYTES``. vLLM's own has neither a parent-death signal nor a death
pipe; this one leaves by itself after an hour, so that a forgotten test holds nothing for ever. The server notices the
end of its engine core at once, as vLLM's does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

_LIFETIME_S = 3600.0


class CoreProcess:
    """The server's hold on its engine core, in a session of its own; it holds its memory once this is made."""

    def __init__(self, folder: Path, used_bytes: int) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "autotune.simulator.child", str(folder), str(used_bytes)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._child.stdout is not None
        self._output = self._child.stdout
        self._output.readline()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def wait(self, seconds: float) -> int | None:
        """Its exit code as soon as it has ended; None after that many wall seconds."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._output.fileno()

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self._child.kill()
        self._child.wait()


def main(folder: str, used_bytes: str) -> None:
    """Hold memory until killed."""
    from autotune.simulator.gpu_state import hold

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold(Path(folder), int(used_bytes))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(_LIFETIME_S)


if __name__ == "__main__":
    main(*sys.argv[1:3])
