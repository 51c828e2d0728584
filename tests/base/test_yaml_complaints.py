from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import UsageError
from autotune.base.yaml_text import read_yaml_mapping


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"gpu: [t4\nmodel: x\n", "line 2, column 6: expected ',' or ']', but got ':'"),
        (b"gpu: t4\ngpu: l4\n", "line 2, column 1: the key 'gpu' is given twice"),
        (b"\xff\xfe\xb1", "it is not text in UTF-8"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_yaml_mapping(path)
    assert str(caught.value) == f"{path}: not valid YAML: {complaint}. Correct the file."
