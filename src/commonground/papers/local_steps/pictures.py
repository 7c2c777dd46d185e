"""Grids of small images as PNG files."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.engine.state.files import write_atomically

__all__ = ["write_pictures"]


def write_pictures(path: Path, panels: Mapping[str, npt.NDArray[np.floating]], columns: int | None = None) -> None:
    """Draw panels of small images.

    Args:
        path: of the PNG file; folders are made.
        panels: by title, [n, height, width, 1 or 3] with values from 0 to 1 (others are cut).
        columns: images in a row: the panels stand below each other; by default each panel is about square, and they
            stand side by side.
    """
    from matplotlib.figure import Figure

    beside = columns is None
    rows, cols = (1, len(panels)) if beside else (len(panels), 1)
    grids = [_grid(images, columns) for images in panels.values()]
    height, width = grids[0].shape[:2]
    size = (3.2 * cols, 3.2 * height / width + 0.3) if beside else (6.4, rows * (6.4 * height / width + 0.35))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    for number, (title, grid) in enumerate(zip(panels, grids, strict=True), 1):
        axes = figure.add_subplot(rows, cols, number)
        axes.imshow(grid, interpolation="nearest", vmin=0, vmax=1, cmap="gray")
        axes.set_title(title, fontsize=9, loc="center" if beside else "left")
        axes.axis("off")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, png.getvalue())


def _grid(images: npt.NDArray[np.floating], columns: int | None) -> npt.NDArray[np.floating]:
    """[n, h, w, c] as one image with a pixel of white between."""
    n, height, width, channels = images.shape
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    grid = np.ones((rows * (height + 1) - 1, columns * (width + 1) - 1, channels))
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        grid[top : top + height, left : left + width] = np.clip(image, 0, 1)
    return grid[..., 0] if channels == 1 else grid
