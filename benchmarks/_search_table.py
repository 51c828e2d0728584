"""Figures, goals and the documentation's table from the rows of the search benchmark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from _search_runs import AA, AUTO_TUNE, FIXED_LOAD, OURS, POLICIES, RANDOM, Row, quality_at, time_to
from _search_systems import SYSTEMS

GOOD = 0.98
MARKS = (10, 20, 30)


def median(values: Iterable[float | None]) -> float | None:
    """Median of what is known; infinite where most never got there."""
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    if not known:
        return None
    low, high = known[(len(known) - 1) // 2], known[len(known) // 2]
    return high if math.isinf(high) else (low + high) / 2


def time_ratio(ours: Row, theirs: Row, wanted: float = GOOD) -> float | None:
    """Our time to come so near to the optimum over the other's.

    Zero where only the other never gets there, infinite where only ours does not, None where neither does.
    """
    mine, other = time_to(ours, wanted), time_to(theirs, wanted)
    if math.isinf(mine) and math.isinf(other):
        return None
    return mine / other if math.isfinite(other) else 0.0


def ratio_at_final(ours: Row, theirs: Row) -> float | None:
    """Our time over the other's to the quality that the other ends with, at most 98 %; None where that is nothing."""
    wanted = min(GOOD, theirs["quality"])
    mine, other = time_to(ours, wanted), time_to(theirs, wanted)
    return None if not wanted or math.isinf(other) else mine / other


def _by_policy(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: found for name in POLICIES if (found := [row for row in rows if row["policy"] == name])}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Medians over systems and seeds, and the goals."""
    groups = _by_policy(rows)
    ours = {(row["system"], row["seed"]): row for row in groups.get(OURS, [])}
    table = {name: _figures(name, found, ours) for name, found in groups.items()}
    wrong = [row["tuned"] for row in rows if row["policy"] == AA]
    return {
        "table": table,
        "goals": goals(table, wrong),
        "aa": {"studies": len(wrong), "claimed": sum(wrong)},
        "systems": len({row["system"] for row in rows}),
        "seeds": len({row["seed"] for row in rows if row["policy"] != AA}),
    }


def _figures(name: str, rows: Sequence[Row], ours: dict[tuple[str, int], Row]) -> dict[str, Any]:
    to_good = [time_to(row, GOOD) for row in rows]
    pairs = [] if name == OURS else [(ours[key], row) for row in rows if (key := (row["system"], row["seed"])) in ours]
    reached = [(math.isfinite(time_to(mine, GOOD)), math.isfinite(time_to(other, GOOD))) for mine, other in pairs]
    return {
        "quality": median(row["quality"] for row in rows),
        "worst_quality": min(row["quality"] for row in rows),
        **{f"quality_at_{mark}": median(quality_at(row, mark) for row in rows) for mark in MARKS},
        "found_nothing": statistics.fmean(row["quality"] == 0 for row in rows),
        "gpu_h_to_good": median(value / 3600 for value in to_good),
        "reached_good": statistics.fmean(math.isfinite(value) for value in to_good),
        "search_h": median(row["search_s"] / 3600 for row in rows),
        "total_h": median(row["total_s"] / 3600 for row in rows),
        "launches": median(row["launches"] for row in rows),
        "failures": statistics.fmean(row["failures"] for row in rows),
        "error": median(None if row["error"] is None else abs(row["error"]) for row in rows),
        "our_time_over_theirs": median(time_ratio(mine, other) for mine, other in pairs),
        "both_reached": sum(mine and other for mine, other in reached),
        "only_ours_reached": sum(mine and not other for mine, other in reached),
        "only_theirs_reached": sum(other and not mine for mine, other in reached),
        "none_reached": sum(not mine and not other for mine, other in reached),
        "our_time_where_both": median(
            time_ratio(mine, other) for (mine, other), both in zip(pairs, reached, strict=True) if all(both)
        ),
        "our_time_at_their_quality": median(ratio_at_final(mine, other) for mine, other in pairs),
        "cpu_s": median(row["cpu_s"] for row in rows),
    }


def goals(table: dict[str, dict[str, Any]], wrong: Sequence[bool]) -> list[dict[str, Any]]:
    """What the search is held to."""
    found = []

    def goal(name: str, value: float | None, most: float | None = None, least: float | None = None) -> None:
        if value is None:
            return
        met = value <= most if most is not None else value >= (least or 0.0)
        limit = f"<= {most:.3g}" if most is not None else f">= {least:.3g}"
        found.append({"name": name, "value": None if math.isinf(value) else round(value, 4), "goal": limit, "met": met})

    ours = table.get(OURS, {})
    goal("quality of the confirmed winner (median)", ours.get("quality"), least=0.98)
    for rival, most in ((AUTO_TUNE, 0.25), (FIXED_LOAD, 1 / 3), (RANDOM, 0.5)):
        ratio = table.get(rival, {}).get("our_time_over_theirs")
        goal(f"GPU time to within 2 % of the optimum over {rival}'s (median)", ratio, most=most)
    goal("error of the reported capacity (median)", ours.get("error"), most=0.03)
    if wrong:
        goal("wrong verdicts on A/A systems", sum(wrong) / len(wrong), most=0.05)
    return found


_LINES = (
    ("quality", "quality in the end, median", "{:.3f}"),
    ("worst_quality", "the worst", "{:.3f}"),
    ("quality_at_10", "quality after 10 launches", "{:.3f}"),
    ("quality_at_20", "after 20", "{:.3f}"),
    ("quality_at_30", "after 30", "{:.3f}"),
    ("found_nothing", "found nothing", "{:.0%}"),
    ("gpu_h_to_good", "GPU hours to within 2 % of the optimum, median", "{:.2f}"),
    ("reached_good", "came that near", "{:.0%}"),
    ("total_h", "GPU hours in all, median", "{:.2f}"),
    ("failures", "failed launches, mean", "{:.1f}"),
    ("error", "error of the reported figure, median", "{:.1%}"),
    ("our_time_over_theirs", "our time to within 2 % over its, median", "{:.2f}"),
    ("both_reached", "runs in which both came that near", "{}"),
    ("only_ours_reached", "only ours (counts as 0)", "{}"),
    ("only_theirs_reached", "only the other (counts as infinite)", "{}"),
    ("none_reached", "neither (left out)", "{}"),
    ("our_time_where_both", "our time over its where both did, median", "{:.2f}"),
    ("our_time_at_their_quality", "our time over its, to the quality that it ended with, median", "{:.2f}"),
)


def markdown(rows: Sequence[Row]) -> str:
    """The table of each system's quality, that of the figures, and the goals."""
    summary = summarise(rows)
    names = list(summary["table"])
    lines = [f"{summary['systems']} systems, {summary['seeds']} seeds.", "", *_quality_table(rows, names), ""]
    lines += ["| | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for key, title, form in _LINES:
        cells = [_cell(summary["table"][name][key], form, key, name) for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += ["", "| goal | reached | asked | |", "| --- | ---: | ---: | --- |"]
    for goal in summary["goals"]:
        value = "never" if goal["value"] is None else f"{goal['value']:.3g}"
        lines.append(f"| {goal['name']} | {value} | {goal['goal']} | {'met' if goal['met'] else '**missed**'} |")
    if summary["aa"]["studies"]:
        lines += ["", f"A/A studies that claimed a gain: {summary['aa']['claimed']} of {summary['aa']['studies']}."]
    return "\n".join(lines)


def _cell(value: float | None, form: str, key: str, name: str) -> str:
    if name == OURS and ("our_time" in key or ("reached" in key and key != "reached_good")):
        return ""
    if value is None:
        return "–"
    return "never" if math.isinf(value) else form.format(value)


def _quality_table(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Median quality of each policy on each system, and the GPU hours to within 2 % beneath."""
    lines = ["| system | default | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) + 1)]
    for system in SYSTEMS:
        own = [row for row in rows if row["system"] == system.name and row["policy"] != AA]
        if not own:
            continue
        cells = []
        for name in names:
            found = [row for row in own if row["policy"] == name]
            quality, hours = median(r["quality"] for r in found), median(time_to(r, GOOD) / 3600 for r in found)
            text = "–" if not found else "none" if not quality else f"{quality:.3f}"
            cells.append(text if hours is None or math.isinf(hours) else f"{text} ({hours:.2f} h)")
        lines.append(f"| {system.name} | {own[0]['default_quality']:.3f} | " + " | ".join(cells) + " |")
    return lines


def in_short(row: Row) -> str:
    """One line of a finished run."""
    where = f"{row['system']}, seed {row['seed']}, {row['policy']}"
    if row["policy"] == AA:
        return f"{where}: {'claims a gain' if row['tuned'] else 'claims none'}; {row['cpu_s']:.0f} s of CPU"
    error = "" if row["error"] is None else f", figure off by {row['error']:+.1%}"
    spent = ", ".join(f"{name} {seconds / 3600:.2f}" for name, seconds in row["spent_s"].items())
    return (
        f"{where}: quality {row['quality']:.3f}, {time_to(row, GOOD) / 3600:.2f} GPU h to 98 %, "
        f"{row['total_s'] / 3600:.2f} in all{f' ({spent})' if spent else ''}, {row['failures']} failed{error}; "
        f"{row['cpu_s']:.0f} s of CPU"
    )
