"""A Docker Compose file."""

from __future__ import annotations

from typing import Any

import yaml

from autotune.export._container import (
    container_model,
    resource_name,
    shared_memory_gib,
    start_allowance_s,
)
from autotune.export.configuration import Configuration
from autotune.export.format import ExportOptions, image_of
from autotune.export.provenance import comment_block
from autotune.space import to_argv

_HEALTH_CHECK = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"
_CACHE = "/root/.cache"


class ComposeFormat:
    """One service with its GPUs reserved. The Hugging Face token comes from a file named by HF_TOKEN_FILE."""

    name = "compose"
    summary = "Docker Compose: GPU reservation, health check, caches"
    file_name = "compose.yaml"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The file's text."""
        model = container_model(configuration)
        variables = {**configuration.environment, "HF_TOKEN_PATH": "/run/secrets/hf_token"}
        volumes = [f"huggingface:{_CACHE}/huggingface", f"vllm:{_CACHE}/vllm"]
        if configuration.local_model:
            volumes.append(f"{_literal(configuration.model)}:{_literal(model)}:ro")
        service: dict[str, Any] = {
            "image": image_of(configuration, options),
            "entrypoint": ["vllm", "serve"],
            "command": [_literal(word) for word in (model, *to_argv(configuration.arguments))],
            "environment": {name: _literal(value) for name, value in variables.items()},
            "secrets": ["hf_token"],
            "ports": [f"127.0.0.1:{options.port}:8000"],
            "volumes": volumes,
            "shm_size": f"{shared_memory_gib(configuration)}gb",
            "healthcheck": {
                "test": ["CMD", "python3", "-c", _HEALTH_CHECK],
                "interval": "10s",
                "timeout": "6s",
                "retries": 3,
                "start_period": f"{start_allowance_s(configuration)}s",
            },
            "restart": "unless-stopped",
            "stop_grace_period": "60s",
            "deploy": {
                "resources": {
                    "reservations": {
                        "devices": [{"driver": "nvidia", "count": configuration.gpus, "capabilities": ["gpu"]}]
                    }
                }
            },
        }
        document = {
            "services": {resource_name(configuration): service},
            "secrets": {"hf_token": {"file": "${HF_TOKEN_FILE:-/dev/null}"}},
            "volumes": {"huggingface": {}, "vllm": {}},
        }
        first = (
            "Start it with: docker compose -f compose.yaml up"
            " (HF_TOKEN_FILE names a file with the Hugging Face token, for gated models)"
        )
        return comment_block(configuration, first) + yaml.safe_dump(
            document, sort_keys=False, allow_unicode=True, width=10_000
        )


def _literal(text: str) -> str:
    """Compose replaces ``$NAME``; a doubled sign stands for itself."""
    return text.replace("$", "$$")
