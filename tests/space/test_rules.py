"""Rules between arguments, GPU and model, and what became of old arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog import Rule, data_folder, load_gpu, load_model
from autotune.space import build_space, explain_argument, to_argv
from autotune.space._base import base_space
from autotune.space.rules import check_rules
from autotune.spec import ArgumentValue, Workload

CHAT = Workload(input_tokens="256:768", output_tokens="128:384")

T4_BF16 = "bfloat16 needs compute capability 8.0"
NEEDS_CHECKPOINT = "needs a checkpoint that was quantized so"


@pytest.mark.parametrize(
    ("gpu", "model", "arguments", "complaint"),
    [
        ("t4", "qwen3-4b", {"max-num-batched-tokens": 64, "max-num-seqs": 128}, "below max-num-seqs"),
        ("t4", "qwen3-4b", {"max-num-seqs": 4096}, "max-num-batched-tokens (2048) is below max-num-seqs (4096)"),
        ("t4", "qwen3-4b", {"max-num-batched-tokens": 64}, ""),
        ("t4", "qwen3-4b", {"dtype": "bfloat16"}, T4_BF16),
        ("t4", "qwen3-4b", {"dtype": "float16"}, ""),
        ("a10g", "qwen3-4b", {"dtype": "bfloat16"}, ""),
        ("t4", "qwen3-4b", {"kv-cache-dtype": "fp8"}, "no other backend runs here"),
        ("a10g", "qwen3-4b", {"kv-cache-dtype": "fp8", "attention-backend": "FLASH_ATTN"}, "capability 9.0"),
        ("a10g", "qwen3-4b", {"kv-cache-dtype": "fp8", "attention-backend": "TRITON_ATTN"}, "FLASHINFER"),
        ("a10g", "qwen3-4b", {"kv-cache-dtype": "fp8"}, ""),
        ("h200", "qwen3-4b", {"kv-cache-dtype": "fp8", "attention-backend": "FLASH_ATTN"}, ""),
        ("t4", "qwen3-4b", {"attention-backend": "FLASHINFER"}, "does not run on a T4"),
        ("t4", "qwen3-4b", {"tensor-parallel-size": 3}, "32 attention heads cannot be split over 3"),
        ("t4", "nanbeige4.1-3b", {"tensor-parallel-size": 8}, "20 attention heads cannot be split over 8"),
        ("t4", "nanbeige4.1-3b", {"tensor-parallel-size": 4}, ""),
        ("t4", "qwen3-4b", {"max-model-len": 50000}, "above the model's context of 40960"),
        ("t4", "qwen3-4b", {"max-model-len": "40k"}, ""),
        ("t4", "qwen3-4b", {"max-model-len": "auto"}, ""),
        ("t4", "qwen3-4b", {"long-prefill-token-threshold": 4096, "max-model-len": 2048}, "above max-model-len"),
        ("t4", "qwen3-4b", {"max-num-active-seqs": 300}, "above max-num-seqs (256)"),
        ("t4", "qwen3-4b", {"gpu-memory-utilization": 1.2}, "not a share"),
        ("t4", "qwen3-4b", {"gpu-memory-utilization": 90}, "not a share"),
        ("t4", "qwen3-4b", {"enable-chunked-prefill": False, "max-num-batched-tokens": 2048}, "below max-model-len"),
        ("t4", "qwen3-4b", {"enable-chunked-prefill": False}, ""),
        ("t4", "qwen3-4b", {"quantization": "awq"}, NEEDS_CHECKPOINT),
        ("t4", "qwen3-4b", {"quantization": "fp8"}, ""),
        ("t4", "qwen3-4b", {"block-size": 20}, "not a multiple of 16"),
        ("cpu", "qwen3-0.6b", {"block-size": 20}, ""),
        ("h200", "qwen3-4b", {"performance-mode": "throughput", "max-num-batched-tokens": 1024}, ""),
        ("h200", "qwen3-4b", {"max-num-seqs": 8192, "performance-mode": "throughput"}, ""),
        ("h200", "qwen3-4b", {"max-num-seqs": 8193}, "max-num-batched-tokens (8192) is below"),
    ],
)
def test_rules(gpu: str, model: str, arguments: dict[str, ArgumentValue], complaint: str) -> None:
    found = build_space(load_gpu(gpu), load_model(model), CHAT).check(arguments)
    if complaint:
        assert len(found) == 1
        assert complaint in found[0]
        assert found[0].endswith(".")
    else:
        assert found == []


def test_rules_know_versions() -> None:
    """FlashInfer kept an fp8 cache on Turing until 0.23."""
    for version, refused in (("0.23.0", False), ("0.24.0", True), (None, True), ("1.0", True)):
        space = build_space(load_gpu("t4"), load_model("qwen3-4b"), CHAT, vllm_version=version)
        assert bool(space.check({"kv-cache-dtype": "fp8"})) is refused, version


def test_violations_say_how_a_launch_would_fail() -> None:
    space = build_space(load_gpu("t4"), load_model("qwen3-4b"), CHAT)
    assert [v.cause for v in space.violations({"dtype": "bfloat16"})] == ["unsupported_hardware"]
    assert [v.cause for v in space.violations({"max-num-seqs": 4096})] == ["invalid_config"]


def test_a_value_of_the_wrong_type_is_named() -> None:
    space = build_space(load_gpu("t4"), load_model("qwen3-4b"), CHAT)
    with pytest.raises(UsageError, match="max-num-batched-tokens: 'lots' is not a number"):
        space.check({"max-num-batched-tokens": "lots"})


def test_mistakes_in_a_rule_are_found_when_it_is_read() -> None:
    gpu, model = load_gpu("t4"), load_model("qwen3-4b")
    wrong = Rule(name="x", require="gpu_colour == 'green'", message="m", remedy="r")
    with pytest.raises(UsageError, match="no fact 'gpu_colour'"):
        check_rules([wrong], gpu, model)
    with pytest.raises(UsageError, match="Call"):
        check_rules([Rule(name="x", require="exit(1)", message="m", remedy="r")], gpu, model)
    with pytest.raises(ValidationError):
        Rule.model_validate({"name": "x", "require": "1 > 0", "message": "m", "remedy": "r", "unless": "2 > 1"})


KNOWN = ["max-num-seqs", "enable-chunked-prefill", "async-scheduling", "gpu-memory-utilization", "kv-offloading-size"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("--swap-space 4", "no effect since the V1 engine"),
        ("swap_space=4", "no effect since the V1 engine"),
        ("worker-use-ray", "distributed-executor-backend: ray"),
        ("max-paddings", "no longer padded"),
        ("disable-log-requests", "enable-log-requests turns it on"),
        ("enable-chunked-prefill True", "write --enable-chunked-prefill, or"),
        ("--enable-chunked-prefill=False", "write --no-enable-chunked-prefill, or"),
        ("num-scheduler-steps", "async-scheduling does its work"),
        ("use-v2-block-manager", "became the only one"),
        ("max-num-seq", "Did you mean max-num-seqs"),
        ("gpu_memory_utilisation", "Did you mean gpu-memory-utilization"),
        ("zzz", "vllm serve --help=all"),
        ("--", "without a name"),
    ],
)
def test_old_and_misspelt_arguments_are_explained(name: str, answer: str) -> None:
    explanation = explain_argument(name, KNOWN)
    assert explanation is not None
    assert answer in explanation


@pytest.mark.parametrize("name", ["max_num_seqs", "--max-num-seqs 4", "no-async-scheduling", "enable-chunked-prefill"])
def test_known_arguments_need_no_explanation(name: str) -> None:
    assert explain_argument(name, KNOWN) is None


def test_an_old_argument_that_the_installed_vllm_still_knows_is_known() -> None:
    assert explain_argument("swap-space", [*KNOWN, "swap-space"]) is None


def test_arguments_become_flags() -> None:
    arguments: dict[str, object] = {
        "max_num_seqs": 8,
        "enforce-eager": True,
        "async-scheduling": False,
        "gpu-memory-utilization": 0.92,
        "compilation-config": {"cudagraph_mode": "NONE", "level": 3},
        "cudagraph-capture-sizes": [1, 2, 4],
        "dtype": "half",
    }
    assert to_argv(arguments) == [
        "--max-num-seqs", "8", "--enforce-eager", "--no-async-scheduling", "--gpu-memory-utilization", "0.92",
        "--compilation-config", '{"cudagraph_mode":"NONE","level":3}', "--cudagraph-capture-sizes", "1", "2", "4",
        "--dtype", "half",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no value"):
        to_argv({"max-num-seqs": None})


def flags_of(version: str) -> set[str]:
    text = (Path(__file__).parent / "data" / f"vllm_{version}_flags.txt").read_text()
    return {line.removeprefix("--") for line in text.splitlines() if line.startswith("--")}


#: Parameters of the base space and replacements that came after 0.24.
LATER = {"max-num-active-seqs"}


def test_the_base_space_names_real_arguments() -> None:
    known = flags_of("0.24.0")
    assert base_space()[0].keys() - known == LATER


def test_old_arguments_are_gone_and_what_replaces_them_exists() -> None:
    known = flags_of("0.24.0")
    for name, entry in read_yaml_mapping(data_folder() / "arguments.yaml").items():
        assert isinstance(entry, dict)
        assert entry.get("instead", "max-num-seqs") in known | LATER, name
        explained = explain_argument(name, known)
        assert name in known or (explained is not None and entry["advice"] in explained)


def test_a_real_vllm_leaves_out_only_what_it_does_not_know() -> None:
    space = build_space(load_gpu("h200"), load_model("qwen3-4b"), CHAT, known=flags_of("0.24.0"))
    assert list(space.distributions()) == list(
        build_space(load_gpu("h200"), load_model("qwen3-4b"), CHAT).distributions()
    )
    with pytest.raises(UsageError, match="max-num-active-seqs is not an argument"):
        build_space(
            load_gpu("h200"),
            load_model("qwen3-4b"),
            CHAT,
            overrides={"max-num-active-seqs": [16, 32]},
            known=flags_of("0.24.0"),
        )
