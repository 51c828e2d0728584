"""The GPUs of the catalogue: complete, consistent and found by every name people use."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import ExitCode, UsageError
from autotune.catalog import data_folder, identify_gpu, list_gpus, load_gpu

EXPECTED = {
    "t4", "a10g", "l4", "rtx3090", "rtx4090", "rtx5090", "a100-40gb", "a100-80gb", "l40s", "h100", "h200", "b200",
    "cpu",
}  # fmt: skip


def test_all_expected_gpus_are_there_under_their_file_names() -> None:
    assert {gpu.name for gpu in list_gpus()} == EXPECTED
    assert {path.stem for path in (data_folder() / "gpus").glob("*.yaml")} == EXPECTED


def test_names_and_aliases_are_unique() -> None:
    names = [name for gpu in list_gpus() for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["T4", "Tesla_T4", "4090", "a100", "H200", "cpu"])
def test_a_gpu_is_found_by_alias_and_spelling(name: str) -> None:
    assert load_gpu(name).name in EXPECTED


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'rtx409'.*rtx4090") as error:
        load_gpu("rtx409")
    assert error.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("nvml_name", "memory_gib", "expected"),
    [
        ("Tesla T4", 15.0, "t4"),
        ("NVIDIA A10G", 22.49, "a10g"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA L40S", 44.99, "l40s"),
        ("NVIDIA GeForce RTX 4090", 23.99, "rtx4090"),
        ("NVIDIA A100-SXM4-40GB", 40.0, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 80.0, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 80.0, "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", 79.65, "h100"),
        ("NVIDIA H200", 140.4, "h200"),
        ("NVIDIA B200", 179.06, "b200"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, None),
        ("NVIDIA GeForce GTX 1080", 8.0, None),
    ],
)
def test_devices_are_identified_by_what_nvml_says(nvml_name: str, memory_gib: float, expected: str | None) -> None:
    gpu = identify_gpu(nvml_name, memory_gib)
    assert (gpu.name if gpu else None) == expected


def test_facts_are_plausible() -> None:
    for gpu in list_gpus():
        assert 0.95 * gpu.memory_gib <= gpu.cuda_memory_gib <= gpu.memory_gib, gpu.name
        assert gpu.defaults["max-num-seqs"] <= gpu.defaults["max-num-batched-tokens"]  # type: ignore[operator]
        if gpu.kind == "cuda":
            assert ("bf16" in gpu.tflops) == (gpu.capability >= 80), gpu.name
            assert ("fp8" in gpu.tflops) == (gpu.capability >= 89), gpu.name


def test_resolved_defaults_follow_vllms_tiers() -> None:
    """``EngineArgs.get_batch_defaults``: below 70 GiB or an A100, from 70 GiB, from 160 GiB."""
    for gpu in list_gpus():
        pair = (gpu.defaults["max-num-seqs"], gpu.defaults["max-num-batched-tokens"])
        if gpu.kind == "cpu":
            assert pair == (128, 2048)
        elif gpu.memory_gib >= 160:
            assert pair == (1024, 16384)
        elif gpu.memory_gib >= 70 and "a100" not in gpu.name:
            assert pair == (1024, 8192)
        else:
            assert pair == (256, 2048), gpu.name


def test_a_users_own_gpu_file_is_read_and_a_misspelt_key_refused(tmp_path: Path) -> None:
    text = (data_folder() / "gpus" / "t4.yaml").read_text().replace("name: t4", "name: my-t4", 1)
    own = tmp_path / "mine.yaml"
    own.write_text(text)
    assert load_gpu(str(own)).name == "my-t4"
    own.write_text(text + "\nmemory: 12\n")
    with pytest.raises(UsageError, match="memory: unknown key"):
        load_gpu(str(own))


def test_a_key_given_twice_is_an_error(tmp_path: Path) -> None:
    own = tmp_path / "twice.yaml"
    own.write_text((data_folder() / "gpus" / "t4.yaml").read_text() + "\npower_w: 80\n")
    with pytest.raises(UsageError, match="'power_w' is given twice"):
        load_gpu(str(own))
