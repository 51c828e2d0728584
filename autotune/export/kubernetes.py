"""A Kubernetes deployment and its service."""

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

_PROBE_PERIOD_S = 10
_STOP_S = 60


class KubernetesFormat:
    """Deployment and Service. The Hugging Face token comes from the secret ``hf-token``, key ``token``."""

    name = "k8s"
    summary = "Kubernetes: deployment with GPU limits and probes, and service"
    file_name = "vllm.k8s.yaml"

    def render(self, configuration: Configuration, options: ExportOptions) -> str:
        """The two documents' text."""
        name = resource_name(configuration)
        documents = [
            _deployment(name, configuration, image_of(configuration, options)),
            _service(name, options.port),
        ]
        first = (
            f"Apply it with: kubectl apply -f {self.file_name}"
            " (the secret 'hf-token' with the key 'token' is needed for gated models only)"
        )
        if configuration.local_model:
            first += "; the claim 'models' must hold the model's folder"
        body = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=10_000, explicit_start=True)
        return comment_block(configuration, first) + body


def _deployment(name: str, configuration: Configuration, image: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "inference"}
    volumes: list[dict[str, Any]] = [
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory_gib(configuration)}Gi"},
        },
        {"name": "cache", "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        {"name": "cache", "mountPath": "/root/.cache"},
    ]
    if configuration.local_model:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}})
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    container = {
        "name": "engine",
        "image": image,
        "command": ["vllm", "serve"],
        "args": [_literal(word) for word in (container_model(configuration), *to_argv(configuration.arguments))],
        "env": [
            *({"name": key, "value": _literal(value)} for key, value in configuration.environment.items()),
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}},
            },
        ],
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": configuration.gpus}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "startupProbe": _probe(failures=start_allowance_s(configuration) // _PROBE_PERIOD_S),
        "readinessProbe": _probe(failures=2),
        "livenessProbe": _probe(failures=3),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            # A rolling update would want a second GPU.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    # Variables of a service named "vllm" would reach the engine as VLLM_PORT.
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": _STOP_S,
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _service(name: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "selector": {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "inference"},
            "ports": [{"name": "http", "port": port, "targetPort": "http"}],
        },
    }


def _probe(failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _literal(text: str) -> str:
    """Kubernetes replaces ``$(NAME)`` in arguments; a doubled sign stands for itself."""
    return text.replace("$(", "$$(")
