"""The local-steps experiments on images, in miniature: settings, what they measure, how they judge."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.errors import ConfigError, DataError, UpdateError
from commonground.papers import experiments
from commonground.papers.local_steps.fig1 import distinctness
from commonground.papers.local_steps.images import (
    ImageCase,
    ImageSettings,
    deal,
    measure,
    name_of,
    power_row,
    training_accuracy,
)
from commonground.papers.local_steps.pictures import write_pictures
from commonground.papers.local_steps.table1 import is_equal_in_training
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request

TINY: dict[str, Any] = {
    "data": "digits",
    "clients": 3,
    "total_steps": 7,
    "lr": 0.05,
    "batch_size": 8,
    "model_options": {"stem": "cifar", "width": 4, "blocks": [1], "norm": "batch"},
    "train_samples": 60,
    "test_samples": 40,
    "engine": "serial",
}


def request(folder: Path, seeds: int = 2, **overrides: Any) -> Request:
    return Request(folder, seeds=seeds, quiet=True, overrides={**TINY, **overrides})


def run(name: str, folder: Path, seeds: int = 2, **overrides: Any) -> Outcome:
    return experiments[f"local-steps-{name}"].run(request(folder, seeds, **overrides))


def test_table_1_at_its_own_scale(tmp_path: Path) -> None:
    """Where steps differ by augmentation, and with augmentations that the paper does not have."""
    shrunk = {"total_steps": {"none": 8, "flip-crop": 8, "crop": 8}, "intervals": [1, 2], "heterogeneity": [0.5]}
    overrides = {**TINY, **shrunk, "augment": ["none", "flip-crop", "crop"], "clients": 2}
    asked = Request(tmp_path, "paper", seeds=1, quiet=True, overrides=overrides)
    found = experiments["local-steps-table1"].run(asked)
    assert len(found.cells) == 6
    assert {(cell.low, cell.high) for cell in found.cells} == {(None, None)}
    assert {(row["low"], row["high"]) for row in found.tables[0].rows} == {("", "")}
    assert len(found.claims) == 3  # none of so few steps about training accuracy


def test_images_are_as_many_of_each_class_and_others_for_every_seed(tmp_path: Path) -> None:
    settings = ImageSettings(**{**TINY, "train_samples": 63})
    one, same, other = (deal(settings, request(tmp_path), 0.5, 0.125, seed) for seed in (1, 1, 2))
    assert len(one.y_train) == 63
    assert one.classes == 2
    assert np.bincount(one.y_train).tolist() == [32, 31]  # 7 of classes 0, 1 and 2, else 6
    np.testing.assert_array_equal(one.x_train, same.x_train)
    assert not np.array_equal(one.x_train, other.x_train)
    assert one.noise is not None
    assert one.noise.strength == 0.125
    assert deal(settings, request(tmp_path), 0.5, 0.0, 1).noise is None
    whole = deal(ImageSettings(**{**TINY, "train_samples": 0, "test_samples": 0}), request(tmp_path), 0.5, 0.0, 1)
    assert len(whole.y_train) + len(whole.y_test) == 1797


def test_what_is_measured_is_what_training_gives(tmp_path: Path) -> None:
    settings = ImageSettings(**TINY)
    arms = [ImageCase(1, 0.5), ImageCase(3, 0.5)]
    found = measure(settings, arms, [4], request(tmp_path), [])
    data = deal(settings, request(tmp_path), 0.5, 0.0, 4)
    own = train(
        "local-sgd",
        data,
        model="resnet18",
        model_options=settings.model_options,
        options={"steps": 3, "total_steps": 7},
        rounds=3,
        batch_size=8,
        lr=0.05,
        weight_decay=5e-4,
        seed=4,
    )
    scores = np.array([[c["global_accuracy"], c["test_samples"]] for c in own.clients])
    assert found[arms[1]].test[0] == pytest.approx(100 * (scores[:, 0] * scores[:, 1]).sum() / scores[:, 1].sum())
    assert torch.equal(found[arms[1]].filters[0], own.shared["conv1.weight"])
    assert found[arms[1]].train[0] == training_accuracy(own, data)
    again = measure(settings, arms, [4], request(tmp_path), [])  # finished runs are taken as they are
    assert [m.test.tolist() for m in again.values()] == [m.test.tolist() for m in found.values()]


def test_a_seed_that_diverges_is_left_out_of_every_case_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {3: (5,), 1: ()}

    def diverging(algorithm: Any, data: Any, **settings: Any) -> Any:
        if settings["seed"] in lost[settings["options"].get("steps", 1)]:
            raise UpdateError("not finite")
        return train(algorithm, data, **settings)

    monkeypatch.setattr("commonground.papers.sweep.train", diverging)
    settings, cases, notes = ImageSettings(**TINY), [ImageCase(1, 0.5), ImageCase(3, 0.5)], list[str]()
    found = measure(settings, cases, [4, 5, 6], request(tmp_path), notes)
    alone = measure(settings, cases, [4, 6], request(tmp_path), [])
    for case in cases:
        assert found[case].seeds == [4, 6]
        assert found[case].test.tolist() == alone[case].test.tolist()
    (note,) = notes
    assert note == (
        "Local SGD (I = 3), h = 0.5, augmentation none, diverged with seed 5, which is left out of all comparisons: "
        "not finite"
    )
    outcome = run("table1", tmp_path / "table", 6, intervals=[1, 3], heterogeneity=[0.5], augment=["none"])
    assert {claim.seeds for claim in outcome.claims} == {5}
    assert note in outcome.notes
    lost[1] = (4,)
    with pytest.raises(UpdateError, match=r"no seed is left of 2: Local SGD .* with seed 5"):
        measure(settings, cases, [4, 5], request(tmp_path / "none"), [])


def test_training_accuracy_counts_training_samples(tmp_path: Path) -> None:
    data = deal(ImageSettings(**TINY), request(tmp_path), 0.5, 0.0, 0)
    got = train("fedavg", data, model="linear", rounds=40, lr=0.1, batch_size=8)
    x = torch.from_numpy(data.x_train).float().flatten(1) * data.preprocess.scale
    assert not data.preprocess.mean
    logits = x @ got.shared["head.weight"].T + got.shared["head.bias"]
    right = (logits.argmax(1).numpy() == data.y_train).mean()
    assert training_accuracy(got, data) == pytest.approx(100 * right)
    assert right > 0.8


def test_table1(tmp_path: Path) -> None:
    outcome = run("table1", tmp_path, 3, intervals=[1, 2, 5], heterogeneity=[0.5], augment=["none", "flip-crop"])
    assert [(c.column, c.method) for c in outcome.cells][:3] == [
        ("no augmentation, h = 0.5", name) for name in ("Parallel SGD", "Local SGD (I = 2)", "Local SGD (I = 5)")
    ]
    assert len(outcome.cells) == 6
    assert outcome.cells[0].paper == 77.73
    assert outcome.cells[1].paper is None
    texts = [claim.claim for claim in outcome.claims]
    assert len(texts) == len(set(texts)) == 2 * (2 + 1)  # and none of training accuracies after so few averages
    assert len(outcome.tables[0].rows) == 6  # which are shown
    rises = "test accuracy rises with I: Local SGD (I = 5) above Local SGD (I = 2): no augmentation, h = 0.5 (points)"
    assert rises in texts
    cells = {c.method: c for c in outcome.cells if c.column == "no augmentation, h = 0.5"}
    above = next(c for c in outcome.claims if c.claim.startswith("Local SGD (I = 2) above"))
    assert above.measured == pytest.approx(cells["Local SGD (I = 2)"].measured - cells["Parallel SGD"].measured)
    assert set(outcome.figures) == {"test accuracy over the interval I", "training accuracy over the interval I"}
    assert any("worst seed" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("interval", "augment", "steps", "equal"),
    [
        (256, "none", 16_384, True),
        (1024, "none", 16_384, False),
        (64, "flip-crop", 65_536, True),
        (256, "flip-crop", 65_536, False),
        (16, "none", 1024, True),
        (64, "none", 1024, False),
    ],
)
def test_training_accuracies_are_claimed_equal_where_the_papers_are(
    interval: int, augment: Any, steps: int, equal: bool
) -> None:
    """The first four are rows of the paper's tables: 100, 95.3, 99.7 and 98.6 %."""
    assert is_equal_in_training(ImageCase(interval, 0.5, augment), steps) is equal


def test_fewer_than_three_seeds_leave_claims_open(tmp_path: Path) -> None:
    outcome = run("table1", tmp_path, 2, intervals=[1, 2], heterogeneity=[0.5], augment=["none"])
    assert {c.holds for c in outcome.claims} == {None}


def test_fig5(tmp_path: Path) -> None:
    outcome = run("fig5", tmp_path, 3, intervals=[1, 3], noises=[0.25, 0.125], heterogeneity=[0.5], augment=["none"])
    assert len(outcome.claims) == 5
    (figure,) = outcome.figures.values()
    line = figure.lines["Local SGD (I = 3)"]
    assert list(line.x) == [0.125, 0.25]
    assert line.low is not None
    assert line.low[0] <= line.mean[0]
    rows = outcome.table("accuracy (%) and what so many seeds can show").rows
    growth = next(c for c in outcome.claims if c.claim.startswith("the gap grows"))
    assert growth.measured == pytest.approx(float(rows[1]["difference"]) - float(rows[0]["difference"]), abs=0.011)


def test_fig1_draws_both_methods_side_by_side(tmp_path: Path) -> None:
    outcome = run("fig1", tmp_path, 3, intervals=[1, 3], heterogeneity=[0.25], augment=["flip-crop"])
    assert len(outcome.claims) == 2
    assert (tmp_path / "figures" / "filters.png").stat().st_size > 1000
    rows = outcome.table("how distinct the first layer's filters are").rows
    assert [row["method"] for row in rows] == ["Parallel SGD", "Local SGD (I = 3)"]


def test_fig4(tmp_path: Path) -> None:
    overrides = {"noises": [0, 0.5], "images": 5} | {k: TINY[k] for k in ("data", "clients", "train_samples")}
    outcome = experiments["local-steps-fig4"].run(Request(tmp_path, seeds=3, quiet=True, overrides=overrides))
    rows = outcome.table("correlation of noisy with clean images").rows
    assert rows[0]["mean"] == 1.0
    assert 0 < rows[1]["mean"] < 1
    assert (tmp_path / "figures" / "feature-noise.png").exists()
    assert len(outcome.claims) == 2


def test_distinctness_by_hand() -> None:
    identity = torch.eye(4).view(4, 1, 2, 2)
    assert distinctness(identity) == pytest.approx({"effective rank": 4.0, "nearest cosine": 0.0})
    alike = torch.ones(3, 1, 2, 2) * torch.tensor([1.0, -2.0, 0.5]).view(3, 1, 1, 1)
    assert distinctness(alike) == pytest.approx({"effective rank": 1.0, "nearest cosine": 1.0})
    # Two of three alike: unit vectors with squared singular values 2 and 1, shares 2/3 and 1/3.
    mixed = torch.stack([torch.tensor([1.0, 0]), torch.tensor([3.0, 0]), torch.tensor([0, 1.0])]).view(3, 1, 1, 2)
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert distinctness(mixed) == pytest.approx({"effective rank": math.exp(entropy), "nearest cosine": 2 / 3})
    dead = torch.cat([identity, torch.zeros(1, 1, 2, 2)])
    assert distinctness(dead) == pytest.approx(distinctness(identity))


def test_power_by_hand() -> None:
    row = power_row(np.array([1.0, 2.0, 3.0]))
    # Standard deviation 1, three seeds: 5.65/√3 by the noncentral t with two degrees of freedom.
    assert row == {"difference": 2.0, "standard deviation": 1.0, "shown with 80 % power": 3.26}
    assert power_row(np.array([1.5])) == {"difference": 1.5}


def test_pictures(tmp_path: Path) -> None:
    from matplotlib.image import imread

    panels = {"a": np.full((5, 4, 4, 3), 2.0), "b": np.zeros((5, 4, 4, 3))}
    for columns in (None, 5):
        write_pictures(tmp_path / "x" / "p.png", panels, columns)
        pixels = imread(tmp_path / "x" / "p.png")
        assert (pixels[..., :3] == 0).mean() > 0.1  # the black panel is there


def test_names() -> None:
    assert [name_of(i) for i in (1, 32)] == ["Parallel SGD", "Local SGD (I = 32)"]


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("table1", {"heterogeneity": [1.5]}, "h of the features partition must be a number from 0 to 1, not 1.5"),
        ("table1", {"intervals": [2, 3]}, r"intervals is \[2, 3\]; it must have 1 \(Parallel SGD\)"),
        ("table1", {"intervals": [0, 1]}, "every interval must be at least 1"),
        ("table1", {"intervals": [1, 9]}, "an interval of 9 steps does not fit into total_steps=7"),
        ("table1", {"total_steps": {"flip-crop": 9}, "augment": ["none"]}, "total_steps has no value for augment=none"),
        ("table1", {"augment": []}, "augment is .*name at least one"),
        ("table1", {"lr": -1}, "lr is -1"),
        ("fig5", {"noises": [-0.5]}, r"noises is \[-0.5\]; name at least one number from 0 on"),
        ("fig5", {"intervals": [1, 2, 3]}, "must be 1 .*and one more"),
        ("table1", {"train_samples": 4}, "training samples of even labels"),
        ("table1", {"colour": 1}, "colour"),
    ],
)
def test_bad_settings(name: str, overrides: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence) as caught:
        run(name, tmp_path, 1, **{"intervals": [1, 3], **overrides})
    assert "\n" not in str(caught.value)


def test_the_papers_scale_is_the_papers() -> None:
    from commonground.papers.local_steps.fig5 import PAPER as fig5
    from commonground.papers.local_steps.table1 import PAPER as table1

    assert table1.intervals == (1, 8, 16, 32, 64, 256, 1024)
    assert [(table1.steps_of(w), table1.lr_of(w)) for w in ("none", "flip-crop")] == [(16384, 0.01), (65536, 0.03)]
    assert (table1.clients, table1.batch_size, table1.heterogeneity) == (8, 64, (0.25, 0.5))
    assert (fig5.intervals, fig5.steps_of("flip-crop")) == ((1, 128), 24000)
    assert fig5.noises == (0.03125, 0.0625, 0.125, 0.25)
    assert json.dumps(table1.model_dump(mode="json"))
