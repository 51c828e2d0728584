"""A stand-in for vLLM's engine core process: it holds GPU memory, ignores SIGTERM, and outlives a killed parent.

Run as ``python -m autotune.simulator.child FOLDER BYTES``. vLLM's own has neither a parent-death signal nor a death
pipe; this one leaves by itself after an hour, so that a forgotten test holds nothing for ever.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

_READY_LINE = "ready\n"
_LIFETIME_S = 3600.0


def spawn(folder: Path, used_bytes: int) -> subprocess.Popen[str]:
    """Start the child in a session of its own and wait until it holds its memory.

    Raises:
        RuntimeError: it ended at once.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "autotune.simulator.child", str(folder), str(used_bytes)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert child.stdout is not None
    if child.stdout.readline() != _READY_LINE:
        raise RuntimeError("the engine core's process did not start")
    return child


def main(folder: str, used_bytes: str) -> None:
    """Hold memory until killed."""
    from autotune.simulator.gpu_state import hold

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold(Path(folder), int(used_bytes))
    sys.stdout.write(_READY_LINE)
    sys.stdout.flush()
    time.sleep(_LIFETIME_S)


if __name__ == "__main__":
    main(*sys.argv[1:3])
