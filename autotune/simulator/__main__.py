"""``python -m autotune.simulator serve MODEL --sim-gpu t4 --time-scale 60 [flags of vllm serve]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from autotune.base.clock import WallClock
from autotune.base.errors import UsageError
from autotune.catalog import load_gpu, load_model
from autotune.simulator import VERSION
from autotune.simulator.arguments import CommandLineError, build_parser, parse_arguments
from autotune.simulator.child import CoreProcess
from autotune.simulator.engine_model import EngineModel
from autotune.simulator.faults import Faults
from autotune.simulator.gpu_state import hold, release, state_folder
from autotune.simulator.log import EngineLog
from autotune.simulator.loop import new_event_loop
from autotune.simulator.memory import GIB, Perturbation
from autotune.simulator.server import bind, serve
from autotune.simulator.startup import Startup, StartupFailedError

_USAGE = "usage: vllm serve [model_tag] [options]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-v"]):
        sys.stdout.write(f"{VERSION}\n")
        return 0
    if not words or words[0] != "serve":
        sys.stderr.write("usage: vllm [-h] [-v] {serve} ...\n")
        return 2
    if any(word in {"-h", "--help"} or word.startswith("--help=") for word in words[1:]):
        sys.stdout.write(build_parser().format_help())
        return 0
    try:
        namespace = parse_arguments(words[1:])
        faults = Faults.parse(namespace.sim_fault)
        Perturbation.parse(namespace.sim_memory_perturbation)
        clock = WallClock(namespace.time_scale)
    except (CommandLineError, ValueError) as error:
        sys.stderr.write(f"{_USAGE}\nvllm serve: error: {error}\n")
        return 2
    return _serve(namespace, clock, faults)


def _serve(namespace: argparse.Namespace, clock: WallClock, faults: Faults) -> int:
    log = EngineLog()
    try:
        model = load_model(namespace.model)
        gpu = load_gpu(namespace.sim_gpu or "t4")
    except UsageError as error:
        if not str(error).startswith("model"):
            sys.stderr.write(f"{_USAGE}\nvllm serve: error: {error}\n")
            return 2
        log.api_traceback(
            ('File "vllm/transformers_utils/config.py", line 912, in get_config',),
            f"ValueError: Invalid repository ID or local directory specified: '{namespace.model}'.\nPlease verify the "
            "following requirements:\n1. Provide a valid Hugging Face repository ID.\n2. Specify a local directory "
            "that contains a recognized configuration file.",
        )
        return 1
    sock = bind(namespace.host, namespace.port, log)
    holder = _MemoryHolder(namespace, log)
    try:
        engine = Startup(namespace, gpu, model, clock, log, faults, on_core_start=holder.take, wait=holder.wait).run()
        loop = new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(sock, engine, namespace, clock, log, faults, holder.core))
        loop.close()
    except StartupFailedError as error:
        return error.exit_code
    finally:
        holder.free(orphan=bool(faults.orphan))
    return 0


class _MemoryHolder:
    """Enters the engine's memory in the ledger of the simulated GPU, under its own or a child's process id."""

    def __init__(self, namespace: argparse.Namespace, log: EngineLog) -> None:
        self._folder = state_folder()
        self._in_child: bool = namespace.sim_child
        self._log = log
        self.core: CoreProcess | None = None
        """The child process, once it was started."""

    def take(self, engine: EngineModel) -> None:
        """Hold what the engine holds once it is ready."""
        used = int(engine.used_gib * GIB)
        if self._folder is None:
            return
        if not self._in_child:
            hold(self._folder, used)
            return
        self.core = CoreProcess(self._folder, used)
        self._log.core_pid = self.core.pid

    def wait(self, seconds: float) -> int | None:
        """Let wall seconds pass, fewer when the child ends: then its exit code."""
        if self.core is not None:
            return self.core.wait(seconds)
        time.sleep(seconds)
        return None

    def free(self, *, orphan: bool) -> None:
        """Let go of it; an orphan keeps it."""
        if self._folder is None:
            return
        if self.core is None:
            release(self._folder)
        elif not orphan:
            self.core.end()
            release(self._folder, self.core.pid)


if __name__ == "__main__":
    sys.exit(main())
