"""Models: the catalogue's facts against published sizes, and config.json of several families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.base.errors import UsageError
from autotune.catalog import ModelShape, list_models, list_workloads, load_model, load_workload

#: Parameters in billions as the model cards give them.
PUBLISHED = {
    "qwen3-4b": 4.02,
    "qwen3-4b-instruct-2507": 4.02,
    "qwen3-4b-thinking-2507": 4.02,
    "nanbeige4.1-3b": 3.93,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen2.5-7b-instruct": 7.616,
    "llama-3.1-8b-instruct": 8.03,
    "gemma-3-4b-it": 4.30,
    "gemma-3-12b-it": 12.19,
    "mistral-7b-instruct-v0.3": 7.248,
}

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
    "use_sliding_window": False,
}


def write(folder: Path, config: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_parameters_match_the_model_cards() -> None:
    models = {model.alias: model for model in list_models()}
    assert models.keys() == PUBLISHED.keys()
    for alias, billions in PUBLISHED.items():
        assert models[alias].parameters / 1e9 == pytest.approx(billions, rel=0.005), alias


def test_kv_cache_and_weights_of_qwen3_4b() -> None:
    """144 KiB per token (36 layers x 8 heads x 128 x 2 x 2 bytes); 7.5 GiB of weights, as its model card says."""
    model = load_model("qwen3-4b")
    assert model.kv_bytes_per_token() == 144 * 1024
    assert model.kv_bytes_per_token(1) == 72 * 1024
    assert model.weight_bytes() / 2**30 == pytest.approx(7.49, abs=0.01)
    assert 40960 * model.kv_bytes_per_token() / 2**30 == pytest.approx(5.625)


def test_active_parameters_of_a_mixture() -> None:
    """Qwen3-30B-A3B activates 3.3 B with its embedding (0.31 B), per its model card."""
    model = load_model("qwen3-30b-a3b")
    assert (model.active_parameters + model.vocabulary * model.hidden) / 1e9 == pytest.approx(3.3, abs=0.1)


def test_local_layers_keep_only_their_window() -> None:
    model = load_model("gemma-3-4b-it")
    per_layer = 2 * 4 * 256 * 2
    assert model.kv_bytes_of_sequence(131072) == per_layer * (5 * 131072 + 29 * 1024)
    assert model.kv_bytes_of_sequence(512) == per_layer * 34 * 512


@pytest.mark.parametrize(
    "name", ["QWEN3-4B", "Qwen/Qwen3-4B", "qwen/qwen3-4b", "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"]
)
def test_models_are_found_by_alias_and_id(name: str) -> None:
    assert load_model(name).alias in PUBLISHED


def test_an_unknown_alias_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean qwen3-4b"):
        load_model("qwen3-4")


def test_an_unknown_id_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="hf download nobody/nothing"):
        load_model("nobody/nothing")


def test_a_folder_is_read(tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "Qwen3-4B", QWEN3_4B))
    known = load_model("qwen3-4b")
    assert model.repository == str(tmp_path / "Qwen3-4B")
    assert model.model_dump(exclude={"repository", "alias"}) == known.model_dump(exclude={"repository", "alias"})


def test_an_id_in_the_local_cache_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--me--Tiny"
    write(folder / "snapshots" / "abc", {**QWEN3_4B, "num_hidden_layers": 2})
    write(folder / "snapshots" / "def", QWEN3_4B)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    model = load_model("me/Tiny")
    assert (model.layers, model.repository, model.alias) == (2, "me/Tiny", "tiny")


def test_nested_text_config_is_read(tmp_path: Path) -> None:
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "max_position_embeddings": 131072,
        "sliding_window": 1024, "sliding_window_pattern": 6, "tie_word_embeddings": True,
    }, "torch_dtype": "bfloat16"}  # fmt: skip
    model = load_model(write(tmp_path, nested))
    assert (model.layers, model.sliding_window, model.full_attention_layers) == (34, 1024, 5)
    assert model.architecture == "Gemma3ForConditionalGeneration"


def test_latent_attention_is_read(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite: 15.7 B parameters, 2.4 B active, 576 values per token and layer (its paper)."""
    config = {
        "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 102400, "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    model = load_model(write(tmp_path, config))
    assert model.parameters / 1e9 == pytest.approx(15.7, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(2.4, rel=0.05)
    assert model.kv_bytes_per_token() == 27 * 576 * 2


@pytest.mark.parametrize(
    ("section", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4}, 0.52),
        ({"quant_method": "gptq", "bits": 8}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.52),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 0.52),
    ],
)
def test_quantized_checkpoints_are_smaller(tmp_path: Path, section: dict[str, object], bytes_per_weight: float) -> None:
    model = load_model(write(tmp_path, {**QWEN3_4B, "quantization_config": section}))
    expected = model.embedding_parameters * 2 + model.linear_parameters * bytes_per_weight
    assert model.weight_bytes() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({k: v for k, v in QWEN3_4B.items() if k != "num_attention_heads"}, "no 'num_attention_heads'"),
        ({**QWEN3_4B, "hidden_size": "wide"}, "'hidden_size' is 'wide'"),
        ([1, 2], "not a JSON object"),
    ],
)
def test_a_config_that_is_no_decoder_is_refused(tmp_path: Path, config: object, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        load_model(write(tmp_path, config))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(UsageError, match="not a folder"):
        load_model("./nowhere")


def test_shapes_refuse_nonsense() -> None:
    base = load_model("qwen3-30b-a3b").model_dump()
    with pytest.raises(ValueError, match="experts_per_token is more"):
        ModelShape.model_validate({**base, "experts_per_token": 200})
    with pytest.raises(ValueError, match="belong together"):
        ModelShape.model_validate({**base, "expert_intermediate": None})


def test_workloads() -> None:
    chat = load_workload("chat")
    assert chat.longest_sequence == chat.input_tokens.high + chat.output_tokens.high
    assert {workload.name for workload in list_workloads()} == {"chat", "rag", "summarize", "code", "batch"}
    with pytest.raises(UsageError, match="Did you mean chat"):
        load_workload("chatt")


QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
    "max_position_embeddings": 262144, "tie_word_embeddings": False, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_linear_attention_keeps_a_state(tmp_path: Path) -> None:
    """Qwen3-Next-80B-A3B: 80 B parameters, 3 B active, 12 of 48 layers with a KV cache (its model card)."""
    model = load_model(write(tmp_path, QWEN3_NEXT))
    assert model.parameters / 1e9 == pytest.approx(80, rel=0.02)
    assert model.active_parameters / 1e9 == pytest.approx(3, rel=0.25)
    assert (model.kv_layers, model.stateful_layers) == (12, 36)
    assert model.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2
    assert model.kv_bytes_of_sequence(1000) == model.state_bytes + 1000 * model.kv_bytes_per_token()
    assert model.state_bytes > 36 * 32 * 128 * 128 * 2


@pytest.mark.parametrize(
    ("keys", "full", "local", "stateful"),
    [
        ({"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 12}, 12, 0, 24),
        ({"layer_types": ["sliding_attention", "full_attention"] * 18, "sliding_window": 128}, 18, 18, 0),
        ({"layers_block_type": ["mamba"] * 32 + ["attention"] * 4, "mamba_d_state": 128}, 4, 0, 32),
        ({"hybrid_override_pattern": "M-M-M*" * 6, "ssm_state_size": 128}, 6, 0, 30),
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}, 4, 0, 32),
        ({"sliding_window": 4096, "use_sliding_window": False}, 36, 0, 0),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 28, 8, 0),
        ({"sliding_window": 4096, "use_sliding_window": True}, 0, 36, 0),
    ],
)
def test_kinds_of_layers(tmp_path: Path, keys: dict[str, object], full: int, local: int, stateful: int) -> None:
    base = {key: value for key, value in QWEN3_4B.items() if "sliding" not in key}
    model = load_model(write(tmp_path, {**base, **keys}))
    assert model.stateful_layers == stateful
    assert (model.full_attention_layers if local else model.kv_layers) == full
    assert model.kv_layers == full + local


def test_layers_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say which"):
        load_model(write(tmp_path, {**QWEN3_4B, "mamba_d_state": 128}))
    with pytest.raises(UsageError, match="no layer with a KV cache"):
        load_model(write(tmp_path, {**QWEN3_4B, "layer_types": ["mamba"] * 36}))


def test_weights_on_disk_decide_how_large_they_are(tmp_path: Path) -> None:
    folder = write(tmp_path, QWEN3_4B)
    assert load_model(folder).checkpoint_bytes is None
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    assert load_model(folder).checkpoint_bytes == 1000
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 9000000000}}')
    model = load_model(folder)
    assert model.weight_bytes() == 9_000_000_000
    assert model.weight_bytes(4) == 18_000_000_000
    plain = load_model("qwen3-4b")
    assert model.weight_bytes(quantization="fp8") / model.weight_bytes() == pytest.approx(
        plain.weight_bytes(quantization="fp8") / plain.weight_bytes()
    )


def test_a_name_that_no_file_system_takes_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="model: "):
        load_model("9" * 400)
