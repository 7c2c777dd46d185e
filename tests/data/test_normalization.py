"""Images are normalised by the statistics that are named, in training, after it and for new clients."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from commonground import load_run, train
from commonground.cli import main
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.normalization import STATISTICS, normalize
from commonground.errors import ConfigError, DataError


def pictures(clients: int = 3, rows: int = 6) -> FederatedDataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * rows, 16, 16, 3), dtype=np.uint8)
    y = np.arange(clients * rows) % 2
    return FederatedDataset.from_arrays(
        [
            (x[rows * c : rows * (c + 1)], y[rows * c : rows * (c + 1)], x[c : c + 2], np.array([0, 1]))
            for c in range(clients)
        ],
        preprocess=STATISTICS["imagenet"],
    )


def test_a_white_pixel_by_hand() -> None:
    """(255/255 − 0.507) / 0.267 in red, and so on."""
    white = np.full((1, 16, 16, 3), 255, np.uint8)

    def made(by: str) -> torch.Tensor:
        form = normalize(pictures(), by).format
        return form.make(form.tensors(white), torch.float64)["x"]

    assert made("cifar100")[0, 0, 0].tolist() == pytest.approx([0.493 / 0.267, 0.513 / 0.256, 0.559 / 0.276], rel=1e-9)
    assert made("none").unique().tolist() == [1.0]


def test_a_run_is_trained_and_asked_with_them(tmp_path: Path) -> None:
    data = pictures()
    run = train("fedavg", data, model="mlp", rounds=1, normalize="cifar10", out=tmp_path / "run", device="cpu")
    other = train("fedavg", data, model="mlp", rounds=1, device="cpu")
    assert run.summary["weights_sha256"] != other.summary["weights_sha256"]
    again = load_run(tmp_path / "run")
    assert again.trained.format.preprocess == STATISTICS["cifar10"]
    assert again.config.normalize == "cifar10"
    x = data.x_test[:2]
    assert np.array_equal(run.predict(x), again.predict(x))


def test_other_samples_and_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no statistics 'mnist' .*imagenet"):
        normalize(pictures(), "mnist")
    with pytest.raises(DataError, match="for pictures of bytes in three colours, which 'digits' are not"):
        train("fedavg", "digits", rounds=1, normalize="imagenet")
    with pytest.raises(ConfigError, match="normalize"):
        RunConfig.make({"normalize": "own"})


def test_the_papers_data_have_their_own() -> None:
    """FedRep's code takes ImageNet's statistics for CIFAR-10, and CIFAR-100's for CIFAR-100."""
    from commonground.data.sources import cifar

    assert cifar._CIFAR10.preprocess == STATISTICS["imagenet"]
    assert cifar._CIFAR100.preprocess == STATISTICS["cifar100"]
    for preprocess in STATISTICS.values():
        assert preprocess.scale == 1 / 255
        assert all(math.isfinite(v) and 0 < v < 1 for v in (*preprocess.mean, *preprocess.std))


def test_the_flag_reaches_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedavg", "--normalize", "cifer10"]) == 2
    assert "did you mean 'cifar10'" in capsys.readouterr().err
