"""Colours that people with any colour vision can tell apart, for a light and a dark page.

The series colours are those of Okabe and Ito (2008) without the yellow, which is too faint on white, and with grey for
black; on a dark ground they are lightened. Beyond seven series the colours return with another dash pattern.
"""

from __future__ import annotations

__all__ = ["DASHES", "INK", "LIGHT_TO_VARIABLE", "PAGE", "SERIES", "VERDICTS", "css_variables", "dash", "series_color"]

# name: (light, dark). The light ones are what matplotlib draws with, so each must differ from all others.
INK = {
    "ground": ("#ffffff", "#1b1f24"),
    "text": ("#1c2126", "#e6e9ec"),
    "soft": ("#57606a", "#a2abb5"),
    "grid": ("#e4e7ea", "#30363d"),
}
PAGE = ("#f6f7f8", "#12151a")
SERIES = (
    ("#0072b2", "#3ea2e5"),
    ("#d55e00", "#ff8134"),
    ("#009e73", "#22c797"),
    ("#cc79a7", "#e296c2"),
    ("#e69f00", "#f2b632"),
    ("#56b4e9", "#9bd6f7"),
    ("#6e7781", "#b8c0c8"),
)
# What holds and what does not, as text: darker than the series' colours, so that it can be read.
VERDICTS = {"good": ("#00795a", "#22c797"), "bad": ("#b34700", "#ff8134")}
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))

LIGHT_TO_VARIABLE = {light: f"var(--{name})" for name, (light, _) in INK.items()} | {
    light: f"var(--s{index})" for index, (light, _) in enumerate(SERIES)
}


def series_color(index: int) -> str:
    """The light colour of a series."""
    return SERIES[index % len(SERIES)][0]


def dash(index: int) -> tuple[float, ...]:
    """The dash pattern of a series, in points; empty for a solid line."""
    return DASHES[index // len(SERIES) % len(DASHES)]


def css_variables(dark: bool) -> str:
    """The colours as CSS custom properties."""
    pairs = [(name, colors[dark]) for name, colors in INK.items()]
    pairs += [(name, colors[dark]) for name, colors in VERDICTS.items()]
    pairs += [(f"s{index}", colors[dark]) for index, colors in enumerate(SERIES)]
    return "".join(f"--{name}:{color};" for name, color in pairs)
