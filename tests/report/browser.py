"""A headless Chromium for the pages: opens one in a frame, uses it, and brings back what it found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--allow-file-access-from-files",
    "--virtual-time-budget=4000",
)  # fmt: skip

# The page in the frame is used as a person would, and what it does is written down.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><iframe id="f" style="width:WIDTHpx;height:900px"></iframe>
<pre id="r"></pre>
<script>
const frame = document.getElementById("f"), found = {};
frame.onload = () => {
  try {
    const d = frame.contentDocument, w = frame.contentWindow, root = d.documentElement;
    found.width = [root.scrollWidth, root.clientWidth];
    found.tables = Object.fromEntries([...d.querySelectorAll(".table")].map(t =>
      [t.getAttribute("aria-label"), [t.scrollWidth, t.clientWidth]]));
    found.cells = [...d.querySelectorAll("[data-key]")].map(c =>
      [c.dataset.key, c.dataset.value ?? null, c.textContent]);
    found.requests = w.performance.getEntriesByType("resource").map(e => e.name);
    const before = root.dataset.theme; d.getElementById("theme").click();
    found.theme = [before ?? null, root.dataset.theme, w.getComputedStyle(d.body).backgroundColor];
    d.querySelectorAll("details").forEach(e => { e.open = true; });
    found.sorted = [...d.querySelectorAll("table.sortable")].map(t => {
      const heads = [...t.querySelectorAll("thead th")];
      const column = Math.max(1, heads.findIndex(h => h.classList.contains("n")));
      heads[column].querySelector("button").click();
      return [...t.tBodies[0].rows].map(r => r.cells[column].dataset.value ?? null);
    });
    found.tips = [...d.querySelectorAll(".plot")].map(p => {
      const svg = p.querySelector("svg"), box = svg.getBoundingClientRect();
      const at = (x, y) => ({clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true});
      svg.dispatchEvent(new w.PointerEvent("pointermove", at(.6, .4)));
      const text = p.querySelector(".tip").innerText, shown = !p.querySelector(".tip").hidden;
      svg.dispatchEvent(new w.KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
      const moved = p.querySelector(".tip").innerText;
      svg.dispatchEvent(new w.PointerEvent("pointerleave", {}));
      return [text, moved, shown && p.querySelector(".tip").hidden];
    });
    found.copies = [...d.querySelectorAll(".copy")].map(p => {
      p.querySelector("button").click();
      return [w.getSelection().toString(), p.querySelector("pre").innerText];
    });
    found.width_after = [root.scrollWidth, root.clientWidth];
    found.errors = root.dataset.errors ?? "";
  } catch (error) { found.harness = String(error); }
  document.getElementById("r").textContent = JSON.stringify(found);
};
frame.src = "report.html";
</script>"""


def chromium() -> str:
    """The browser's path; the test is skipped where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium), so the page is not tried in a browser")
    return found


def use(report: Path, profile: Path, width: int = 390) -> dict[str, Any]:
    """Use a page and return what was found; in a window as wide as a phone, or of so many pixels."""
    harness = report.with_name("harness.html")
    harness.write_text(HARNESS.replace("WIDTH", str(width)), "utf-8")
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", harness.resolve().as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="r">(.+?)</pre>', result.stdout, re.DOTALL)
    assert found is not None, f"the page did not load: {result.stderr[-500:]}"
    values: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert "harness" not in values, values["harness"]
    return values
