"""Random flips and crops of image batches, drawn by key and done by one gather."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["Augment", "Draws"]

Augment = Literal["none", "flip", "crop", "flip-crop"]


PADDING = 4  # pixels on every side before a crop, as is usual for CIFAR


class Draws(NamedTuple):
    """What was drawn for a batch: ``flip`` [n] (bool), and the corner ``top``, ``left`` [n] of the crop."""

    flip: Tensor
    top: Tensor
    left: Tensor

    @classmethod
    def of(cls, rows: int, kind: Augment, generator: torch.Generator) -> Draws:
        """Draw for so many images; all kinds take the same numbers from the generator."""
        flip = torch.rand(rows, generator=generator) < 0.5
        top, left = torch.randint(0, 2 * PADDING + 1, (2, rows), generator=generator)
        if "flip" not in kind:
            flip = torch.zeros_like(flip)
        if "crop" not in kind:
            top, left = torch.full_like(top, PADDING), torch.full_like(left, PADDING)
        return cls(flip, top, left)

    def padded(self, rows: int) -> Draws:
        """The same draws for the first of so many images; the others stay as they are."""
        more = rows - len(self.flip)
        if more == 0:
            return self
        still = torch.full((more,), PADDING)
        return Draws(
            torch.cat([self.flip, torch.zeros(more, dtype=torch.bool)]),
            torch.cat([self.top, still]),
            torch.cat([self.left, still]),
        )

    def apply(self, x: Tensor, fill: Tensor) -> Tensor:
        """Mirror and crop images.

        Args:
            x: [n, height, width, channels].
            fill: [channels] or scalar; what a black pixel is in ``x``, put around the image.
        """
        n, height, width, channels = x.shape
        padded = fill.to(x.dtype).expand(n, height + 2 * PADDING, width + 2 * PADDING, channels).clone()
        padded[:, PADDING : PADDING + height, PADDING : PADDING + width] = x
        row = self.top.unsqueeze(1) + torch.arange(height, device=x.device)
        column = torch.arange(width, device=x.device).expand(n, width)
        column = self.left.unsqueeze(1) + torch.where(self.flip.unsqueeze(1), width - 1 - column, column)
        return padded[torch.arange(n, device=x.device).view(-1, 1, 1), row.unsqueeze(2), column.unsqueeze(1)]
