"""Feature noise: every client's samples carry a foreign client's image, faintly and with a negative sign.

Source: Bao, Crawshaw and Liu 2024, section 8.2.
"""

from __future__ import annotations

from dataclasses import replace

from commonground.data.arrays import FeatureNoise
from commonground.data.federated import FederatedDataset
from commonground.errors import DataError
from commonground.keys import numpy_stream

__all__ = ["add_feature_noise"]


def add_feature_noise(data: FederatedDataset, strength: float, seed: int) -> FederatedDataset:
    """The same samples with feature noise; all arrays are shared with ``data``.

    For every client i a foreign image x̃ᵢ is drawn, each training sample of the other clients with equal probability.
    Every sample of client i then enters a model as x − ρ·x̃ᵢ, training, validation and test samples alike. The
    subtraction is made in floating point, on the scale that :class:`Preprocess` gives and before its mean and
    deviation; the paper's own code subtracts in uint8, where negative values wrap around to bright ones.

    The paper tests one global model on one test set. Here the test samples are dealt to the clients as the training
    samples are, each part has its client's x̃ᵢ, and the accuracy is the mean over these parts, which are equal in size
    up to one sample of each class.

    Source: Bao, Crawshaw and Liu 2024, section 8.2.

    Args:
        data: numeric samples of at least two clients, without feature noise.
        strength: ρ, at least 0; with 0 the result is ``data`` itself.
        seed: keys the draw, one stream per client.

    Raises:
        ConfigError: the strength is negative or not finite.
        DataError: the samples are tokens, there is one client only, or there is feature noise already.
    """
    FeatureNoise.check_strength(strength)
    if strength == 0:
        return data
    data.format.check_noise(data.name)
    if data.clients < 2:
        raise DataError(f"feature noise is another client's image, and {data.name!r} has one client only")
    if data.noise is not None:
        raise DataError(f"{data.name!r} already has feature noise of strength {data.noise.strength:g}")
    rows = []
    for client in range(data.clients):
        start, end = data.train_offsets[client : client + 2].tolist()
        others = len(data.train_index) - (end - start)
        drawn = int(numpy_stream(seed, "feature noise", client).integers(others))
        rows.append(data.train_index[drawn if drawn < start else drawn + end - start])
    return replace(data, noise=FeatureNoise(strength, data.x_train[rows]))
