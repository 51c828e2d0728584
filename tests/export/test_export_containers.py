from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import UsageError
from autotune.export import FORMATS, Configuration, ExportOptions
from autotune.export.testing import sample_configuration


def _service(configuration: Configuration, options: ExportOptions | None = None) -> dict[str, Any]:
    document = yaml.safe_load(FORMATS.get("compose").render(configuration, options or ExportOptions()))
    ((_, service),) = document["services"].items()
    assert isinstance(service, dict)
    return service


def _kubernetes(
    configuration: Configuration, options: ExportOptions | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    deployment, service = yaml.safe_load_all(FORMATS.get("k8s").render(configuration, options or ExportOptions()))
    return deployment, service


def _container(configuration: Configuration, options: ExportOptions | None = None) -> dict[str, Any]:
    (container,) = _kubernetes(configuration, options)[0]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_compose_reserves_the_gpus_that_the_engine_takes() -> None:
    configuration = sample_configuration()
    (device,) = _service(configuration)["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    two = replace(configuration, arguments={"tensor-parallel-size": 2, "pipeline-parallel-size": 2})
    (device,) = _service(two)["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 4
    assert _service(two)["shm_size"] == "32gb"


def test_compose_listens_on_loopback_only_and_checks_health() -> None:
    service = _service(sample_configuration(), ExportOptions(port=9000))
    assert service["ports"] == ["127.0.0.1:9000:8000"]
    assert "/health" in service["healthcheck"]["test"][-1]
    assert service["healthcheck"]["start_period"] == "600s"


def test_a_slow_start_gets_more_time() -> None:
    configuration = sample_configuration()
    slow = replace(configuration, provenance=configuration.provenance.model_copy(update={"start_s": 401.0}))
    assert _service(slow)["healthcheck"]["start_period"] == "1210s"
    assert _container(slow)["startupProbe"]["failureThreshold"] == 121


def test_dollar_signs_are_not_variables() -> None:
    configuration = sample_configuration()
    assert "it's $$(mine) & yours" in _service(configuration)["command"]
    assert "it's $$(mine) & yours" in _container(configuration)["args"]


def test_commands_are_the_flags_that_were_measured() -> None:
    expected = ["Qwen/Qwen3-4B", "--max-num-seqs", "24", "--gpu-memory-utilization", "0.95"]
    for words in (_service(sample_configuration())["command"], _container(sample_configuration())["args"]):
        assert words[:5] == expected
        assert words[5:7] == ["--enable-chunked-prefill", "--no-enable-prefix-caching"]


@pytest.mark.parametrize("name", ["compose", "k8s"])
def test_images_are_of_the_measured_release_unless_named(name: str) -> None:
    configuration = sample_configuration(simulated=False)
    assert "image: vllm/vllm-openai:v0.24.0\n" in FORMATS.get(name).render(configuration, ExportOptions())
    own = FORMATS.get(name).render(configuration, ExportOptions(image="registry.example/llm:1"))
    assert "image: registry.example/llm:1\n" in own
    facts = configuration.provenance.model_copy(update={"engine_version": "0.24.1.dev3+gabc"})
    with pytest.raises(UsageError, match="not a release"):
        FORMATS.get(name).render(replace(configuration, provenance=facts), ExportOptions())


def test_the_token_is_only_referred_to() -> None:
    configuration = sample_configuration()
    document = yaml.safe_load(FORMATS.get("compose").render(configuration, ExportOptions()))
    assert document["secrets"] == {"hf_token": {"file": "${HF_TOKEN_FILE:-/dev/null}"}}
    assert _service(configuration)["environment"]["HF_TOKEN_PATH"] == "/run/secrets/hf_token"
    (token,) = [entry for entry in _container(configuration)["env"] if entry["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "token", "optional": True}


def test_a_local_model_is_mounted(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    configuration = replace(sample_configuration(), model=str(folder))
    service = _service(configuration)
    assert service["command"][0] == "/models/My Model"
    assert f"{folder}:/models/My Model:ro" in service["volumes"]
    pod = _kubernetes(configuration)[0]["spec"]["template"]["spec"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in pod["volumes"]


def test_kubernetes_gives_one_pod_its_gpus_memory_and_probes() -> None:
    deployment, service = _kubernetes(sample_configuration(), ExportOptions(port=80))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert {p["httpGet"]["path"] for p in (container["startupProbe"], container["livenessProbe"])} == {"/health"}
    assert any(v.get("emptyDir", {}).get("medium") == "Memory" for v in pod["volumes"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    selector = service["spec"]["selector"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("vllm", "llm-vllm"),
        ("Qwen/Qwen3_4B.Instruct", "llm-qwen3-4b-instruct"),
        ("/srv/models/ÄÖ/", "llm-model"),
        ("x" * 90, "llm-" + "x" * 46),
    ],
)
def test_names_are_dns_labels_and_never_vllm(model: str, name: str) -> None:
    configuration = sample_configuration()
    facts = configuration.provenance.model_copy(update={"model": model})
    deployment, service = _kubernetes(replace(configuration, provenance=facts))
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == name
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_script_starts_vllm_with_exactly_these_words(tmp_path: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash")
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "sampler=$VLLM_USE_FLASHINFER_SAMPLER"\n')
    fake.chmod(0o755)
    script = tmp_path / "serve.sh"
    script.write_text(FORMATS.get("shell").render(sample_configuration(), ExportOptions()))
    done = subprocess.run(
        [shell, str(script), "--port", "9000"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "serve", "Qwen/Qwen3-4B",
        "--max-num-seqs", "24",
        "--gpu-memory-utilization", "0.95",
        "--enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--compilation-config", '{"cudagraph_mode": "FULL"}',
        "--served-model-name", "it's $(mine) & yours",
        "--port", "9000",
        "sampler=0",
    ]  # fmt: skip


def test_environment_files_hold_one_variable_a_line() -> None:
    text = FORMATS.get("env").render(sample_configuration(), ExportOptions())
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["VLLM_USE_FLASHINFER_SAMPLER=0"]
    broken = replace(sample_configuration(), environment={"A": "1\nB=2"})
    with pytest.raises(UsageError, match="cannot be written"):
        FORMATS.get("env").render(broken, ExportOptions())
