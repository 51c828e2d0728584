"""Writes the model folder of the rows: the shape of Qwen3-4B and a tokenizer of one word per token, no weights.

    python -m benchmarks.engine_rows.dummy_model FOLDER

vLLM serves it with ``--load-format dummy``. Token ids are whole words, so that detokenizing costs as little as it can.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
WORDS = 151643

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": WORDS,
    "eos_token_id": WORDS + 2,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "initializer_range": 0.02,
}

_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<unk>",
    "chat_template": "{% for m in messages %}<|im_start|> {{ m['content'] }} <|im_end|> {% endfor %}",
}


def tokenizer() -> dict[str, object]:
    """The words w0, w1, ... and the special tokens, split at white space."""
    vocabulary = {f"w{index}": index for index in range(WORDS)}
    vocabulary |= {text: WORDS + index for index, text in enumerate(SPECIAL)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    named = {_TOKENIZER_CONFIG[key] for key in ("eos_token", "pad_token", "unk_token")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": WORDS + index, "content": text, **flags} for index, text in enumerate(SPECIAL) if text in named
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def main() -> None:
    """Write the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"config.json": CONFIG, "tokenizer.json": tokenizer(), "tokenizer_config.json": _TOKENIZER_CONFIG}
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
