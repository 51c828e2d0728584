"""The report in a real browser: scripts run, and nothing spills over on a narrow screen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.report import write_report
from autotune.store.result import StudyDocument

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(_CHROMIUM is None, reason="no chromium is installed"),
]

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=5000",
    "--dump-dom",
)

_PROBE = """<!doctype html><body>
<iframe id="narrow" src="report.html" style="width:390px;height:900px"></iframe>
<iframe id="wide" src="report.html" style="width:1400px;height:900px"></iframe>
<pre id="out"></pre>
<script>
addEventListener("load", () => {
  const say = [];
  for (const id of ["narrow", "wide"]) {
    const page = document.getElementById(id).contentDocument;
    say.push(`${id} ${page.documentElement.scrollWidth}`);
    const shown = [...page.querySelectorAll("svg.chart")].filter((svg) => svg.getBoundingClientRect().width > 0);
    say.push(`${id}-charts ${shown.map((svg) => svg.classList[1]).join(",")}`);
  }
  const page = document.getElementById("wide").contentDocument;
  const table = page.getElementById("trials-table");
  const first = () => table.tBodies[0].rows[0].cells[0].textContent;
  const head = [...table.tHead.rows[0].cells].find((cell) => cell.textContent.startsWith("capacity"));
  head.querySelector("button").click();
  say.push(`ascending ${first()}`);
  head.querySelector("button").click();
  say.push(`descending ${first()}`, `sort ${head.getAttribute("aria-sort")}`);
  page.querySelector("input[value=measured]").click();
  say.push(`left ${[...table.tBodies[0].rows].filter((row) => !row.hidden).length}`);
  document.getElementById("out").textContent = say.join("\\n");
});
</script></body>"""


def _look(folder: Path) -> dict[str, str]:
    (folder / "probe.html").write_text(_PROBE)
    assert _CHROMIUM is not None
    done = subprocess.run(
        [_CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "probe.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    out = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert out is not None, done.stdout[-2000:]
    return dict(line.split(" ", 1) for line in out.group(1).splitlines())


def test_report_in_a_browser(document: StudyDocument, tmp_path: Path) -> None:
    write_report(document, tmp_path / "report.html")
    seen = _look(tmp_path)
    assert int(seen["narrow"]) <= 390
    assert int(seen["wide"]) <= 1400
    assert set(seen["narrow-charts"].split(",")) == {"narrow"}
    assert set(seen["wide-charts"].split(",")) == {"wide"}
    by_capacity = sorted((t for t in document.trials if t.capacity_rps), key=lambda t: t.capacity_rps or 0)
    assert seen["ascending"] == str(by_capacity[0].number)
    assert seen["descending"] == str(by_capacity[-1].number)
    assert seen["sort"] == "descending"
    assert int(seen["left"]) == sum(t.outcome.value != "measured" for t in document.trials)
