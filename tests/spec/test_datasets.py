"""Dataset files: each published format, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.base.errors import UsageError
from autotune.spec import Endpoint, LengthSpec, Workload
from autotune.spec.dataset import DatasetKind, read_dataset

FILES = {
    "prompts.jsonl": "\n".join(
        [
            '{"prompt": "Tell me a story about a fox.", "output_tokens": 50}',
            '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},'
            ' {"role": "assistant", "content": "Hello"}]}',
            '"just a string"',
        ]
    ),
    "sharegpt.json": json.dumps(
        [
            {
                "id": "a",
                "conversations": [
                    {"from": "human", "value": "What is two and two?"},
                    {"from": "gpt", "value": "It is four, of course."},
                    {"from": "human", "value": "And three and three?"},
                    {"from": "gpt", "value": "Six."},
                ],
            },
            {"id": "b", "conversations": [{"from": "gpt", "value": "An answer first"}]},
            {"id": "c", "conversations": [{"from": "human", "value": "Nobody answers"}]},
        ]
    ),
    "mooncake.jsonl": "\n".join(
        [
            '{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}',
            '{"timestamp": 30000, "input_length": 600, "output_length": 26, "hash_ids": [46, 99]}',
            '{"timestamp": 31500, "input_length": 0, "output_length": 26, "hash_ids": []}',
            '{"timestamp": 33000, "input_length": 700, "output_length": 10}',
        ]
    ),
    "burstgpt.csv": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
        "118,GPT-4,417,0,417,Conversation log\n125,ChatGPT,1360,35,1395,Conversation log\n"
    ),
    "azure.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    ),
    "azure24.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "lengths", "times"),
    [
        ("mooncake.jsonl", DatasetKind.MOONCAKE, [(1100, 52), (600, 26), (700, 10)], [0, 3, 6]),
        ("burstgpt.csv", DatasetKind.BURSTGPT, [(472, 18), (1087, 230), (1360, 35)], [0, 40, 120]),
        ("azure.csv", DatasetKind.AZURE, [(374, 44), (396, 109)], [0, 4.314579]),
        ("azure24.csv", DatasetKind.AZURE, [(2162, 5), (2399, 6)], [0, 0.007405]),
    ],
)
def test_traces_give_lengths_and_times(
    folder: Path, name: str, kind: DatasetKind, lengths: list[tuple[int, int]], times: list[float]
) -> None:
    dataset = read_dataset(folder / name)
    assert dataset.kind is kind
    assert [(row.input_tokens, row.output_tokens) for row in dataset.rows] == lengths
    assert [row.at for row in dataset.rows] == pytest.approx(times, abs=1e-5)
    assert dataset.rate == pytest.approx((len(times) - 1) / times[-1], rel=1e-4)


def test_prompts_in_each_of_their_forms(folder: Path) -> None:
    rows = read_dataset(folder / "prompts.jsonl").rows
    assert [row.messages for row in rows] == [
        (("user", "Tell me a story about a fox."),),
        (("system", "Be brief."), ("user", "Hi")),
        (("user", "just a string"),),
    ]
    assert rows[0].output_tokens == 50
    assert rows[0].input_tokens == 7


def test_conversations_without_a_question_or_an_answer_are_left_out(folder: Path) -> None:
    (row,) = read_dataset(folder / "sharegpt.json").rows
    assert row.messages == (("user", "What is two and two?"),)
    assert row.output_tokens == 6
    assert row.later_turns == (("And three and three?", 1),)


def test_a_workload_of_a_dataset_describes_its_lengths(folder: Path) -> None:
    workload = Workload.model_validate({"dataset": {"path": folder / "burstgpt.csv", "replay": True}})
    assert (workload.input_tokens.low, workload.input_tokens.high) == (472, 1360)
    assert workload.input_tokens.mean == pytest.approx((472 + 1087 + 1360) / 3)
    assert workload.longest_sequence == 1360 + 230
    assert workload.endpoint is Endpoint.COMPLETIONS
    assert Workload.model_validate(workload.model_dump()) == workload
    assert Workload.model_validate(json.loads(workload.model_dump_json())) == workload
    text = Workload.model_validate({"dataset": str(folder / "sharegpt.json")})
    assert text.endpoint is Endpoint.CHAT


def test_a_dataset_that_was_changed_is_refused(folder: Path) -> None:
    workload = Workload.model_validate({"dataset": str(folder / "azure.csv")})
    dumped = workload.model_dump()
    dumped["dataset"]["digest"] = "0" * 16
    with pytest.raises(ValueError, match="not the file that was used before"):
        Workload.model_validate(dumped)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "format is not known"),
        ("hello\n", "format is not known"),
        ('{"prompt": "a"}\n{"prompt": \n', "row 2: not JSON"),
        ('{"no": "prompt"}', "row 1: has neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "row 2: not a request of Azure's trace"),
        ("Timestamp,Request tokens,Response tokens\n1,10,0\n", "no usable row"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_dataset(path)


def test_a_missing_file_and_a_replay_without_times(folder: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_dataset(folder / "nothing")
    with pytest.raises(UsageError, match="no arrival times"):
        Workload.model_validate({"dataset": {"path": folder / "prompts.jsonl", "replay": True}})


def test_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("300\n100\n200\n")
    spec = LengthSpec.parse(f"file:{path}")
    assert (spec.low, spec.high, spec.mean, spec.values) == (100, 300, 200, (100, 200, 300))
    assert LengthSpec.parse(str(spec)) == spec
    many = LengthSpec.of_values(list(range(1, 5001)))
    assert len(many.values) == 1000
    assert (many.low, many.high) == (1, 5000)
    assert many.mean == pytest.approx(2500.5, rel=0.01)
    path.write_text("0\n")
    with pytest.raises(UsageError):
        LengthSpec.parse(f"file:{path}")
    with pytest.raises(UsageError, match="No such file"):
        LengthSpec.parse("file:/no/such/file")
