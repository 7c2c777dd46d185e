"""Least squares for many small problems at once, with the minimum-norm solution where there are several."""

from __future__ import annotations

import torch

__all__ = ["least_squares", "local_only"]

RANK = 1e-12  # a triangular factor's diagonal entry below this share of the largest one counts as zero


def least_squares(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """argmin_w ‖features·w − targets‖, of all minimisers the one of smallest norm.

    By QR of the features (m ≥ p) or of their transpose (m < p), which is as accurate as the problem allows; problems
    without full rank are solved again by singular values.

    Args:
        features: [..., m, p].
        targets: [..., m].

    Returns:
        [..., p].
    """
    wide = features.shape[-2] < features.shape[-1]
    q, r = torch.linalg.qr(features.mT if wide else features)
    diagonal = r.diagonal(dim1=-2, dim2=-1).abs()
    deficient = ~(diagonal.amin(-1) > RANK * diagonal.amax(-1))
    if bool(deficient.any()):
        r = torch.where(deficient[..., None, None], torch.eye(r.shape[-1], dtype=r.dtype, device=r.device), r)
    column = targets[..., None]
    if wide:
        column_solution = q @ torch.linalg.solve_triangular(r.mT, column, upper=False)
    else:
        column_solution = torch.linalg.solve_triangular(r, q.mT @ column, upper=True)
    solution: torch.Tensor = column_solution[..., 0]
    if bool(deficient.any()):
        few = features[deficient].cpu(), column[deficient].cpu()  # only there has PyTorch this driver
        again = torch.linalg.lstsq(*few, driver="gelsd").solution
        solution[deficient] = again[..., 0].to(solution.device)
    return solution


def local_only(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Local Only: every client fits its own d weights, by minimum-norm least squares where it has fewer than d samples.

    Args:
        x: [S, n, m, d].
        y: [S, n, m].

    Returns:
        [S, n, d].
    """
    return least_squares(x, y)
