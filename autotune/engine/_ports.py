"""Fresh loopback ports, and whose process listens on one."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


def free_port() -> int:
    """A loopback port that nobody uses at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def listening_sockets(port: int) -> set[int]:
    """Inodes of the sockets that listen on a TCP port of this machine, whatever their address."""
    inodes: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(int(fields[9]))
    return inodes


def listens(pids: Collection[int], port: int) -> bool | None:
    """Whether one of the processes listens on the port; None where the system does not tell."""
    inodes = listening_sockets(port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    readable = False
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                readable = True
                with contextlib.suppress(OSError):
                    if str(Path(descriptor.path).readlink()) in wanted:
                        return True
    return False if readable else None
