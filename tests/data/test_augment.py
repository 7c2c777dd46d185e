"""Random flips and crops: what they do to an image, that they are keyed, and alike in every engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from commonground.data import Preprocess
from commonground.data.augment import PADDING, Draws
from commonground.errors import ConfigError
from tests.helpers import ENGINES, assert_tensors_close, fitting, images, made_data, train_whole

SETTINGS: dict[str, Any] = {"rounds": 2, "seed": 3, "batch_size": 4, "dtype": "float64", "lr": 0.1, "model": "mlp"}


def test_images_by_hand() -> None:
    x = torch.arange(2 * 3 * 2 * 1.0).view(2, 3, 2, 1) + 1
    draws = Draws(torch.tensor([True, False]), torch.tensor([PADDING, PADDING + 1]), torch.tensor([PADDING, PADDING]))
    out = draws.apply(x, torch.tensor([-7.0]))
    assert out[0, ..., 0].tolist() == [[2, 1], [4, 3], [6, 5]]  # mirrored
    assert out[1, ..., 0].tolist() == [[9, 10], [11, 12], [-7, -7]]  # moved up by one
    left = Draws(torch.tensor([True]), torch.tensor([PADDING]), torch.tensor([PADDING + 1])).apply(
        x[:1], torch.zeros(())
    )
    assert left[0, ..., 0].tolist() == [[0, 2], [0, 4], [0, 6]]  # moved left by one, then mirrored


def test_draws_are_fair_and_keyed() -> None:
    def draw(seed: int, kind: Any = "flip-crop") -> Draws:
        return Draws.of(18_000, kind, torch.Generator().manual_seed(seed))

    one = draw(1)
    assert abs(float(one.flip.double().mean()) - 0.5) < 0.02
    for corner in (one.top, one.left):
        counts = torch.bincount(corner, minlength=2 * PADDING + 1)
        assert len(counts) == 2 * PADDING + 1
        assert abs(counts - 2000).max() < 250
    assert float(torch.corrcoef(torch.stack([one.top.double(), one.left.double()]))[0, 1].abs()) < 0.05
    assert torch.equal(draw(1).top, one.top)
    assert not torch.equal(draw(2).top, one.top)
    assert torch.equal(draw(1, "flip").flip, one.flip)
    assert (draw(1, "flip").top == PADDING).all()
    assert not draw(1, "crop").flip.any()
    assert torch.equal(draw(1, "crop").left, one.left)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "perfedavg", "local-sgd", "fedsgd"])
def test_engines_agree(algorithm: str) -> None:
    settings = fitting(algorithm, SETTINGS)
    runs = [train_whole(algorithm, images(), engine=engine, augment="flip-crop", **settings) for engine in ENGINES]
    for engine, other in zip(ENGINES[1:], runs[1:], strict=True):
        assert_tensors_close(other.run.shared, {n: v.numpy() for n, v in runs[0].run.shared.items()}, 1e-11)
        assert (other.sha == runs[0].sha) is (engine != "batched")
    plain = train_whole(algorithm, images(), engine="serial", **settings)
    assert plain.sha != runs[0].sha


def test_black_stays_black_after_normalisation() -> None:
    # The border must be what a zero pixel becomes: of an image that is all black, nothing may change.
    black = made_data((6, 6), (8, 8, 2), preprocess=Preprocess(scale=0.5, mean=(0.25, 0.5), std=(0.5, 2.0)))
    black.x_train[:] = 0
    kinds = ("none", "flip-crop")
    assert len({train_whole("fedavg", black, augment=kind, engine="serial", **SETTINGS).sha for kind in kinds}) == 1


def test_tests_are_not_augmented() -> None:
    runs = [train_whole("fedavg", images(), augment=kind, engine="serial", **SETTINGS | {"lr": 1e-30}) for kind in
            ("none", "flip-crop")]  # fmt: skip
    assert [c["test_loss"] for c in runs[0].run.clients] == pytest.approx([c["test_loss"] for c in runs[1].run.clients])


def test_only_images() -> None:
    with pytest.raises(ConfigError, match="augment=flip needs images, and samples of made are none"):
        train_whole("fedavg", made_data(), augment="flip", model="linear")
