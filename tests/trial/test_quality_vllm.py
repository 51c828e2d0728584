"""The quality check against a real vLLM (CPU build). Needs AUTOTUNE_VLLM_PYTHON, a Python that has vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engine import LaunchRequest, VllmEngine, detect_vllm
from autotune.spec import Arguments, QualityLimits, Workload
from autotune.store.result import QualityDocument, Role
from autotune.trial.order import TrialOrder
from autotune.trial.quality import ANSWER_TOKENS, QualityCheck, ask
from autotune.trial.quality_prompts import quality_prompts

PYTHON = os.environ.get("AUTOTUNE_VLLM_PYTHON")
TINY_MODEL = Path(__file__).parents[1] / "tiny_model.py"
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
BASE: Arguments = {"load-format": "dummy", "enforce-eager": True, "max-num-seqs": 8}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="AUTOTUNE_VLLM_PYTHON names no Python with vLLM"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    subprocess.run([sys.executable, TINY_MODEL, folder], check=True)
    return folder


async def test_a_real_engine_agrees_with_itself_and_another_number_format_is_told_from_it(
    model: Path, tmp_path: Path
) -> None:
    assert PYTHON is not None
    workload = Workload.model_validate({"input_tokens": "100:200", "output_tokens": 64})
    check = QualityCheck(quality_prompts(workload), QualityLimits(), frozenset({"dtype"}), tmp_path / "reference.json")
    engine = VllmEngine(detect_vllm(PYTHON), environment=ENVIRONMENT)

    async def examine(arguments: Arguments, *, is_reference: bool = False) -> QualityDocument | None:
        running = await engine.start(LaunchRequest(str(model), {**BASE, **arguments}, tmp_path, 300.0))
        try:
            if is_reference:
                first = (await ask(running, check.prompts[:1], 1))[0]
                assert first is not None
                assert len(first.tokens) == len(first.logprobs) == ANSWER_TOKENS
                assert all(
                    top[token] == max(top.values()) for token, top in zip(first.tokens, first.logprobs, strict=True)
                )
            order = TrialOrder(0, Role.SEARCH, arguments, tmp_path, is_reference=is_reference)
            return await check.examine(order, running)
        finally:
            await running.stop()

    try:
        reference = await examine({}, is_reference=True)
        assert reference is not None
        assert reference.passed
        assert reference.prompts == len(check.prompts)
        assert reference.repeat is not None
        assert reference.repeat.first_tokens > 0.9

        same = await examine({"dtype": "bfloat16"})
        assert same is not None
        assert same.agreement is not None
        assert same.passed, same.text
        other = await examine({"dtype": "float32"})
        assert other is not None
        assert other.agreement is not None
        assert other.agreement.prefix < same.agreement.prefix
    finally:
        await engine.close()
