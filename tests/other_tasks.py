"""Small data whose targets are no classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonground import FederatedDataset

TESTS = (3, 4, 12, 20, 20, 30)


def regression_data(tests: Sequence[int] = TESTS, *, targets: Sequence[str] = ("price",), scale: float = 1.0):
    """Linear targets with noise; every client has weights of its own on common features.

    Args:
        tests: test samples of every client.
        targets: names of the targets.
        scale: of the targets.
    """
    rng = np.random.default_rng(0)
    body = rng.normal(size=(6, 2))
    clients = []
    for count in tests:
        own = rng.normal(size=(2, len(targets)))
        x = rng.normal(size=(24 + count, 6)).astype(np.float32)
        y = (scale * (x @ body @ own + 0.2 * rng.normal(size=(len(x), len(targets))))).astype(np.float32)
        clients.append((x[:24], y[:24], x[24:], y[24:]))
    return FederatedDataset.from_arrays(clients, name="houses", task="regression", class_names=list(targets))


def multilabel_data(clients: int = 5, *, none_for: int | None = None):
    """Three labels, each more or less frequent at every client.

    Args:
        clients: how many.
        none_for: a client whose samples have no label at all.
    """
    rng = np.random.default_rng(1)
    body = rng.normal(size=(6, 3))
    parts = []
    for client in range(clients):
        x = rng.normal(size=(44, 6)).astype(np.float32)
        y = (x @ body + rng.normal(size=3) > 0.5).astype(np.float32)
        if client == none_for:
            y[:] = 0
        parts.append((x[:24], y[:24], x[24:], y[24:]))
    return FederatedDataset.from_arrays(parts, name="tags", task="multilabel", class_names=["cat", "dog", "bird"])
