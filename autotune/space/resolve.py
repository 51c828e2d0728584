"""What unset engine arguments resolve to: vLLM's own rules, as coordinates and for checks, never as flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.catalog import Gpu, ModelShape
from autotune.spec import Arguments, ArgumentValue

#: ``max-model-len`` values that mean: as long as the KV cache holds.
AUTO_LENGTHS = ("auto", "-1", -1)


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves the arguments of one GPU and model. ``defaults`` are those of unset arguments by name."""

    gpu: Gpu
    model: ModelShape
    defaults: Mapping[str, ArgumentValue | None]

    def resolve(self, arguments: Arguments) -> dict[str, ArgumentValue | None]:
        """All arguments with the values that the engine will use; None where nobody knows.

        Follows ``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``: ``performance-mode
        throughput`` doubles the two defaults, a step holds no more than all sequences at full length, and
        no more sequences run than tokens fit into a step.
        """
        values: dict[str, ArgumentValue | None] = {**self.defaults, **arguments}
        length = max_model_len(arguments, self.model)
        values["max-model-len"] = length
        doubling = 2 if values.get("performance-mode") == "throughput" else 1
        if "max-num-batched-tokens" not in arguments:
            tokens = _whole(values.get("max-num-batched-tokens"), 2048) * doubling
            if values.get("enable-chunked-prefill") is False:
                tokens = max(tokens, length)
            sequences = _whole(values.get("max-num-seqs"), 256)
            sequences *= 1 if "max-num-seqs" in arguments else doubling
            values["max-num-batched-tokens"] = max(1, min(tokens, sequences * length))
        if "max-num-seqs" not in arguments:
            sequences = _whole(values.get("max-num-seqs"), 256) * doubling
            values["max-num-seqs"] = min(sequences, _whole(values.get("max-num-batched-tokens"), 2048))
        return values


def max_model_len(arguments: Arguments, model: ModelShape) -> int:
    """The context length that the arguments ask for; the model's own when unset or automatic."""
    value = arguments.get("max-model-len")
    if value is None or value in AUTO_LENGTHS:
        return model.context_length
    return parse_size(value)


def parse_size(value: ArgumentValue) -> int:
    """Whole numbers as vLLM reads them: ``4096``, ``16k`` (thousand), ``16K`` (1024).

    Raises:
        ValueError: not such a number.
    """
    if isinstance(value, str):
        text = value.strip()
        scale = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1:], 1)
        return int(float(text[:-1] if scale > 1 else text) * scale)
    return int(value)


def _whole(value: ArgumentValue | None, otherwise: int) -> int:
    if value is None:
        return otherwise
    try:
        return parse_size(value)
    except ValueError:
        return otherwise
