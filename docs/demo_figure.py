"""Draws ``docs/demo.svg`` from the demo's own runs.

make demo-figure
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from commonground.demo import CLASSES, CLIENTS, ROUNDS, demo_comparison

SEEDS = 3
LEFT, RIGHT, TOP, ROW = 104, 66, 98, 42
WIDTH = 500

# Colours follow the reader's light or dark screen, the ground included, so that it is readable on any page.
STYLE = """
  text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .ground { fill: #ffffff } .soft { fill: #59636e; font-size: 13px } .best { font-weight: 700 }
  .mean { fill: #8c9bb0 } .worst { fill: #c9d1dc } .own.mean { fill: #1769aa } .own.worst { fill: #7db3e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .ground { fill: #161b22 } .soft { fill: #9aa4af }
    .mean { fill: #6e7a8a } .worst { fill: #3d4550 } .own.mean { fill: #58a6ff } .own.worst { fill: #27598f }
  }
"""


def drawn(methods: list[dict[str, Any]]) -> str:
    """Two bars for each method: the mean over clients, and the worst tenth of clients."""
    height = TOP + ROW * len(methods) + 14
    what = f"{CLIENTS} clients of {CLASSES} classes, {ROUNDS} rounds, {SEEDS} seeds"
    box = f'viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{_spoken(methods)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
        '<text x="20" y="30" class="best">Accuracy on unseen samples of each client\u2019s own digits</text>',
        f'<text x="20" y="52" class="soft">{what}</text>',
        '<text x="20" y="73" class="soft">thick: mean over clients; thin: the worst tenth of them</text>',
    ]
    for place, entry in enumerate(methods):
        parts += _bars(entry, TOP + place * ROW)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(entry: dict[str, Any], y: int) -> list[str]:
    mean, worst = entry["personal_accuracy"]["mean"], entry["p10"]["mean"]
    own = " own" if entry["method"] == "fedrep" else ""
    bold = " best" if own else ""
    full = WIDTH - LEFT - RIGHT
    return [
        f'<text x="{LEFT - 12}" y="{y + 17}" text-anchor="end" class="{bold.strip()}">{escape(entry["title"])}</text>',
        f'<rect class="mean{own}" x="{LEFT}" y="{y}" width="{full * mean:.1f}" height="18" rx="3"/>',
        f'<rect class="worst{own}" x="{LEFT}" y="{y + 20}" width="{full * worst:.1f}" height="8" rx="3"/>',
        f'<text x="{LEFT + full * mean + 8:.1f}" y="{y + 15}" class="{bold.strip()}">{mean:.1%}</text>',
    ]


def _spoken(methods: list[dict[str, Any]]) -> str:
    return "; ".join(
        f"{escape(entry['title'])} {entry['personal_accuracy']['mean']:.1%}, worst tenth {entry['p10']['mean']:.1%}"
        for entry in methods
    )


if __name__ == "__main__":
    file = Path(__file__).with_name("demo.svg")
    file.write_text(drawn(demo_comparison(SEEDS).to_dict()["methods"]), "utf-8")
    print(file)
