"""A Python with vLLM imported that forks a server for each engine: imports are paid once a study, not once a process.

Run by vLLM's own Python; standard library only. It talks over a Unix socket: a request carries the output's descriptor,
the environment and the command; answers tell the process id and, later, the exit status. Processes that a server starts
(engine core, workers) are forked as well, from a factory of that server, instead of being spawned with all imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import re
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import context, forkserver, popen_forkserver, resource_tracker, spawn, util
from typing import Any

_RLOCK = type(threading.RLock())
ENGINE_MARK = "AUTOTUNE_ENGINE_ID"
_MESSAGE_BYTES = 1 << 20
_COMMON = (
    "transformers",
    "torch._inductor.compile_fx",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.compilation.backends",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models",
)
_CUDA = (
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
)
_CPU = ("vllm.v1.attention.backends.cpu_attn", "vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner")
_CPU_BUILD = {
    # vLLM sets these for the processes that it spawns on a CPU; torch reads them when it is imported, which is now.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
}
_FACTORY_CALL = re.compile(
    r"main\((?P<listener>\d+), (?P<alive>\d+), .*?(?:'authkey_r': (?P<key>\d+))?\}?\)$", re.DOTALL
)
_imported_environment: dict[str, str] = {}
"""Variables that imports set, as vLLM's do: a fork does not import again, so they are set for it."""


def preload() -> dict[str, object]:
    """Import what every engine imports; fails when that touches the GPU, which a fork must not inherit."""
    before = dict(os.environ)
    # Inductor's pool of compiler processes belongs to the engine that needs it, not to all of them.
    os.environ["TORCH_WARM_POOL"] = "0"
    # vLLM sets it too, but only once it is imported. Counting GPUs through CUDA is enough to lose them in every fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    torch = importlib.import_module("torch")
    on_cpu = torch.version.cuda is None and getattr(torch.version, "hip", None) is None
    if on_cpu:
        os.environ.update(_CPU_BUILD)
    missing = []
    for module in (*_COMMON, *(_CPU if on_cpu else _CUDA)):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a version lacks it imports later by itself
            missing.append(f"{module}: {error!r}")
    with contextlib.suppress(Exception):
        # It finds its place in memory by the environment, which every engine changes.
        importlib.import_module("setproctitle").getproctitle()
    if torch.cuda.is_initialized() or (not on_cpu and _fork_loses_the_gpu(torch)):
        raise RuntimeError("importing vLLM initialised CUDA")
    _imported_environment.update(
        {name: value for name, value in os.environ.items() if before.get(name) != value and name != "TORCH_WARM_POOL"}
    )
    gc.collect()
    gc.freeze()
    return {"ready": True, "missing": missing, "threads": threading.active_count()}


def _fork_loses_the_gpu(torch: Any) -> bool:
    pid = os.fork()
    if pid == 0:
        lost = True
        try:
            lost = torch.cuda._is_in_bad_fork()
        finally:
            os._exit(int(lost))
    return os.waitpid(pid, 0)[1] != 0


def main(descriptor: int) -> int:
    """Preload, then serve requests until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    try:
        _send(channel, preload())
    except BaseException:  # told to the other end, which starts engines without us
        _send(channel, {"ready": False, "error": traceback.format_exc()[-2000:]})
        return 1
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    inherited = (channel, wake, woken)
    while True:
        for key, _ in selector.select():
            if key.fileobj is wake:
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
                _reap(channel)
            elif not _serve(channel, inherited):
                return 0


def _serve(channel: socket.socket, inherited: Sequence[socket.socket]) -> bool:
    data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
    if not data:
        return False
    request = json.loads(data)
    pid = os.fork()
    if pid == 0:
        _become_engine(request, descriptors[0], inherited)
    os.close(descriptors[0])
    _send(channel, {"started": pid})
    return True


def _reap(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, message: Mapping[str, object]) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(message).encode())


def _become_engine(request: Mapping[str, object], output: int, inherited: Sequence[socket.socket]) -> None:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for open_socket in inherited:
            open_socket.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        environment = request["environment"]
        command = request["command"]
        assert isinstance(environment, dict)
        assert isinstance(command, list)
        _overwrite_mark(str(environment[ENGINE_MARK]))
        os.environ.clear()
        os.environ.update({**environment, **_imported_environment})
        random.seed()
        fork_instead_of_spawning()
        sys.argv = command
        sys.modules.pop(str(request["module"]), None)
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException:  # the traceback is the engine's last word, as in a process of its own
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _overwrite_mark(engine_id: str) -> None:
    """Put this engine's own mark where ``/proc/PID/environ`` shows it: a fork inherits the bytes of its program."""
    old = os.environ.get(ENGINE_MARK, "")
    if len(old) != len(engine_id):
        return
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    block = ctypes.string_at(start, end - start)
    entry = f"{ENGINE_MARK}={old}".encode()
    at = block.find(entry)
    if at >= 0:
        ctypes.memmove(start + at, f"{ENGINE_MARK}={engine_id}".encode(), len(entry))


def fork_instead_of_spawning() -> None:
    """Have multiprocessing's spawn method fork from a factory process that has everything imported.

    The factory is multiprocessing's own fork server, forked from here instead of started anew. As with spawning, a
    child gets its parent's environment.
    """
    context.SpawnProcess._Popen = staticmethod(popen_forkserver.Popen)  # type: ignore[method-assign, assignment]
    plain_preparation, plain_prepare = spawn.get_preparation_data, spawn.prepare

    def preparation_with_environment(name: str) -> dict[str, object]:
        return {**plain_preparation(name), "environment": dict(os.environ)}

    def prepare_with_environment(data: dict[str, object]) -> None:
        environment = data.pop("environment", None)
        if isinstance(environment, dict):
            os.environ.clear()
            os.environ.update(environment)
        random.seed()
        plain_prepare(data)

    spawn.get_preparation_data = preparation_with_environment
    spawn.prepare = prepare_with_environment  # type: ignore[assignment]
    plain_spawn = util.spawnv_passfds

    def fork_factory(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        call = _FACTORY_CALL.search(arguments[-1])
        if call is None:
            return plain_spawn(path, arguments, descriptors)
        pid = os.fork()
        if pid == 0:
            _run_factory(int(call["listener"]), int(call["alive"]), call["key"])
        return pid

    resource_tracker.ensure_running()
    util.spawnv_passfds = fork_factory  # type: ignore[assignment]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = plain_spawn
    forkserver.ForkServer.ensure_running = _tracker_only  # type: ignore[method-assign]


def _tracker_only(self: forkserver.ForkServer) -> None:
    resource_tracker.ensure_running()


def _run_factory(listener: int, alive: int, key: str | None) -> None:
    try:
        server: Any = forkserver._forkserver
        # It was forked while its parent held this lock.
        server._lock = type(server._lock)() if isinstance(server._lock, _RLOCK) else threading.Lock()
        _close_other_end(alive)
        with socket.socket(fileno=os.dup(listener)) as bound:
            server._forkserver_address = bound.getsockname()
        forkserver.ForkServer.ensure_running = _tracker_only  # type: ignore[method-assign]
        run: Any = forkserver.main
        run(listener, alive, [], **({} if key is None else {"authkey_r": int(key)}))
    finally:
        os._exit(0)


def _close_other_end(reading: int) -> None:
    """Close what was inherited of a pipe's writing end, or its reader would never see that the parent is gone."""
    pipe = os.fstat(reading).st_ino
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        descriptor = int(name)
        with contextlib.suppress(OSError):
            if descriptor != reading and os.fstat(descriptor).st_ino == pipe:
                os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
