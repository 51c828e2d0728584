from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.clock import WallClock
from autotune.base.files import write_atomically, write_json
from autotune.base.suggest import did_you_mean


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def refuse(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="disk"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_json_refuses_what_is_not_a_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"p99": float("nan")})


def test_nearest_names_come_first() -> None:
    assert did_you_mean("T5", ["t4", "a10g", "h200"]).startswith("Did you mean t4")
    assert did_you_mean("zzzzzz", ["t4", "a10g"]) == "Known: a10g, t4."


async def test_a_scaled_clock_runs_ahead_of_the_machine() -> None:
    fast, real = WallClock(50.0), WallClock()
    began_fast, began_real = fast.now(), real.now()
    await fast.sleep(1.0)
    assert fast.now() - began_fast >= 1.0
    assert (fast.now() - began_fast) / (real.now() - began_real) == pytest.approx(50.0, rel=0.2)


def test_a_clock_needs_a_positive_scale() -> None:
    with pytest.raises(ValueError, match="positive"):
        WallClock(0.0)
