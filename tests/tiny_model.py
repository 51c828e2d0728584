"""Writes a tiny model folder (config and tokenizer, no weights) that a real vLLM serves with ``--load-format dummy``.

Run as ``python tests/tiny_model.py FOLDER``; needs nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 2048
CONTEXT = 4096

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": VOCABULARY - 3,
    "eos_token_id": VOCABULARY - 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "initializer_range": 0.02,
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 visible characters by which byte-level tokenizers write bytes (GPT-2's table)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(shifted)) for byte in range(256)]


def tokenizer() -> dict[str, object]:
    """A byte-level BPE: the bytes, then pairs of printable characters until the vocabulary is full."""
    alphabet = byte_alphabet()
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    letters = "".join(alphabet[ord(c)] for c in "etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLUCMFWYPVBGKQJXZ 0123456789.,")
    merges: list[list[str]] = []
    for first in letters:
        for second in letters:
            if len(vocabulary) >= VOCABULARY - len(SPECIAL):
                break
            vocabulary[first + second] = len(vocabulary)
            merges.append([first, second])
    added = [
        {
            "id": VOCABULARY - len(SPECIAL) + index,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, name in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def write_tiny_model(folder: Path) -> Path:
    """Write the folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "bos_token": None,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"eos_token_id": VOCABULARY - 1, "temperature": 0.0}
    for name, document in (
        ("config.json", CONFIG),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return folder


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
