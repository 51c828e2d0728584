"""Sections of studies without one figure or one workload: the front, and the workloads one by one."""

from __future__ import annotations

from autotune.report import figures, words
from autotune.report._charts import front_chart
from autotune.report._html import Html, tag
from autotune.report._parts import flags, number_cell, section, table, text_cell
from autotune.report.comparison import workload_rows
from autotune.report.lookup import Standing
from autotune.report.series import front_picture
from autotune.search.objective import aim_of_result
from autotune.store.result import StudyDocument


def workloads_section(document: StudyDocument) -> Html | None:
    """What the winner and the default do with each of several workloads."""
    rows = [
        (
            {"class_": row.standing.value},
            [
                text_cell([row.label, tag("small", part.workload)]),
                number_cell(part.capacity_rps),
                number_cell(part.output_tokens_per_s),
                number_cell(part.p99_latency_s, figures.seconds(part.p99_latency_s)),
                number_cell(part.p99_ttft_s, figures.seconds(part.p99_ttft_s)),
                number_cell(ratio, f"{figures.number(ratio)} times"),
            ],
        )
        for row, part, ratio in workload_rows(document)
    ]
    if not rows:
        return None
    heads = [("configuration, workload", False), *((name, True) for name in _WORKLOAD_HEADS)]
    caption = "Each workload by itself on the same engine" + ("; SIMULATED" if document.simulated else "")
    return section("workloads", "Workload by workload", table(caption, heads, rows))


_WORKLOAD_HEADS = ("capacity, req/s", "output tok/s", "P99 latency", "P99 TTFT", "against default")


def front_section(document: StudyDocument) -> Html | None:
    """The configurations that nothing beats in throughput and in latency."""
    if not document.front:
        return None
    output, latency = aim_of_result(document).told
    heads = [("configuration", False), ("trial", True), ("capacity, req/s", True), (output.title, True)]
    rows = []
    for point in document.front:
        knee = document.best is not None and document.best.number == point.number
        name = [point.label, tag("small", flags(point.arguments))] if point.label else flags(point.arguments)
        cells = [
            text_cell(name),
            number_cell(float(point.number), point.number),
            number_cell(point.capacity_rps),
            number_cell(point.output_tokens_per_s),
            number_cell(point.target_latency_s, figures.seconds(point.target_latency_s)),
        ]
        rows.append(({"class_": Standing.WINNER.value} if knee else {}, cells))
    caption = "What no other configuration beats in both figures, from the search's own trials"
    return section(
        "front",
        "The front",
        front_chart(front_picture(document)),
        table(
            caption + ("; SIMULATED" if document.simulated else ""),
            [*heads, (f"{latency.title} {words.front_load(document)}", True)],
            rows,
        ),
        tag(
            "p",
            "None of them is the best in every respect. best.yaml has the one with most output per second of latency,"
            " the knee, if it is confirmed to beat the default there.",
            class_="under",
        ),
    )
