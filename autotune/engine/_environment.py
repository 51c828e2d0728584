"""The environment of an engine: what confuses vLLM taken out, what a study needs put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_CONFUSING = re.compile(
    r"""VLLM_PORT | VLLM_HOST_IP | VLLM_API_KEY | VLLM_ENABLE_STARTUP_PLAN | VLLM_CONFIGURE_LOGGING
      | VLLM_LOGGING_CONFIG_PATH
      | VLLM_(\w+_)?SERVICE_(HOST|PORT)(_\w+)? | VLLM_(\w+_)?PORT_\d+_(TCP|UDP)(_\w+)? | VLLM_DP_\w+
      | MASTER_(ADDR|PORT) | (LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE) | NODE_RANK | GROUP_WORLD_SIZE
      | TORCHELASTIC_\w+ | OMPI_\w+ | PMIX?_\w+ | RAY_ADDRESS | PYTHONHOME | PYTHONSTARTUP | VIRTUAL_ENV
      | AUTOTUNE_(ENGINE_ID|TUNER|STUDY)""",
    re.VERBOSE,
)
"""Variables of other launchers, of Kubernetes' service discovery and of outer runs."""
_QUIET_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL", "FATAL"})
_READY_TIMEOUT_S = 3600
"""How long vLLM's front end waits for its engine: always the same, since it is part of the compile cache's key."""


def engine_environment(
    outer: Mapping[str, str],
    *,
    model: str,
    devices: str | None,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """The environment for one engine.

    Args:
        outer: our own environment.
        model: what is served; a local folder keeps the engine off the network.
        devices: value for ``CUDA_VISIBLE_DEVICES`` (index, GPU or MIG UUID), or None to leave it alone.
        extra: variables that win over all others.
    """
    environment = {
        name: value
        for name, value in outer.items()
        if not _CONFUSING.fullmatch(name) and not (name.startswith("VLLM_") and value.startswith("tcp://"))
    }
    if environment.get("VLLM_LOGGING_LEVEL", "").upper() in _QUIET_LEVELS:
        # What an engine says while it starts is how its memory is known and its failures are told apart.
        environment["VLLM_LOGGING_LEVEL"] = "INFO"
    environment |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(_READY_TIMEOUT_S),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    if Path(model).is_dir():
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return environment | dict(extra)
