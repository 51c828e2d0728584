from __future__ import annotations

import pytest
import yaml

from autotune.base.yaml_text import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10:50", "10:50"),
        ("256:768", "256:768"),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("False", False),
        ("010", 10),
        ("1_000", 1000),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("10s", "10s"),
        ("null", None),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
    ],
)
def test_scalars_are_what_people_mean(text: str, value: object) -> None:
    parsed = parse_yaml(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_objects_are_not_built() -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml("!!python/object/apply:os.getcwd []")
