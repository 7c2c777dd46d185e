"""Feature noise: whose image is subtracted, from what, and that every path through the package sees the same."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from commonground import FederatedDataset, train
from commonground.adapt import few_shot
from commonground.cli import main
from commonground.compare import compare, validation_split
from commonground.config import RunConfig
from commonground.data import FeatureNoise, Preprocess, add_feature_noise, limit_samples, load_data
from commonground.data.model_inputs import ModelInputs
from commonground.data.part import part_of
from commonground.engine import run_training
from commonground.engine.predictions import inputs_for
from commonground.engine.prepare import prepare_setup
from commonground.engine.run import load_run
from commonground.engine.state import folder as run_folder
from commonground.engine.state.files import write_atomically
from commonground.errors import ConfigError, DataError, RunError
from commonground.models import call
from tests.helpers import EXACT, assert_same_run, engines_changed, made_data, train_whole

quick = settings(max_examples=40, deadline=None)


def numbered(sizes: list[int], test: int = 2) -> FederatedDataset:
    """Sample k has the value k + 1, test samples are negative; rows of the clients are mixed."""
    n = sum(sizes)
    order = np.random.default_rng(n).permutation(n)
    return FederatedDataset(
        name="numbered",
        x_train=np.arange(1, n + 1, dtype=np.float64)[:, np.newaxis],
        y_train=np.arange(n) % 2,
        x_test=-np.arange(1, test * len(sizes) + 1, dtype=np.float64)[:, np.newaxis],
        y_test=np.arange(test * len(sizes)) % 2,
        classes=2,
        class_names=("a", "b"),
        train_index=order,
        train_offsets=np.cumsum([0, *sizes]),
        test_index=np.arange(test * len(sizes)),
        test_offsets=np.arange(0, test * len(sizes) + 1, test),
    )


def pictures(**fields: Any) -> FederatedDataset:
    """Three clients with 2×2 byte images of three channels."""
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[Any, Any]:
        return rng.integers(0, 256, (n, 2, 2, 3), dtype=np.uint8), np.arange(n) % 2

    return FederatedDataset.from_arrays([(*part(n), *part(2)) for n in (3, 4, 5)], name="pictures", **fields)


def noise_of(data: FederatedDataset) -> FeatureNoise:
    assert data.noise is not None
    return data.noise


def rows(data: FederatedDataset, split: str, index: Any) -> Any:
    return ModelInputs(data, torch.float64).rows(split, np.asarray(index, dtype=np.int64))[0]["x"].numpy()


# -- the draw ---------------------------------------------------------------------------------------------------------


@quick
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6), seed=st.integers(0, 2**40))
def test_the_image_is_a_training_sample_of_another_client(sizes: list[int], seed: int) -> None:
    data = numbered(sizes)
    images = noise_of(add_feature_noise(data, 0.5, seed)).images
    owner = data.owners("train")
    assert images.shape == (len(sizes), 1)
    for client, image in enumerate(images[:, 0]):
        assert 0 <= owner[int(image) - 1] != client


def test_every_sample_of_the_others_is_equally_likely() -> None:
    data = numbered([1, 2, 3, 6])  # unequal on purpose: equal by sample is not equal by client
    seeds = 3000
    drawn = np.stack([noise_of(add_feature_noise(data, 1.0, seed)).images[:, 0] for seed in range(seeds)]).astype(int)
    for client, size in enumerate(data.train_sizes):
        counts = np.bincount(drawn[:, client], minlength=13)[1:]
        foreign = data.owners("train") != client
        assert (counts[~foreign] == 0).all()
        expected = seeds / (12 - size)
        assert ((counts[foreign] - expected) ** 2 / expected).sum() < 35  # 5 to 10 degrees of freedom; p < 1e-4
    # Clients draw independently.
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.1


def test_unowned_samples_are_not_drawn() -> None:
    data = numbered([3, 3])
    data = replace(data, train_index=data.train_index[[0, 3]], train_offsets=np.array([0, 1, 2]))
    drawn = {float(v) for s in range(20) for v in noise_of(add_feature_noise(data, 1.0, s)).images[:, 0]}
    assert drawn == set(data.x_train[data.train_index, 0].tolist())


def test_the_draw_is_keyed_by_the_seed_and_not_by_the_strength() -> None:
    data = numbered([4, 5, 6, 7])
    first, again, stronger, other = (
        add_feature_noise(data, rho, seed) for rho, seed in ((0.1, 0), (0.1, 0), (0.2, 0), (0.1, 1))
    )
    assert np.array_equal(noise_of(first).images, noise_of(stronger).images)
    assert first.fingerprint() == again.fingerprint()
    assert len({d.fingerprint() for d in (data, first, stronger, other)}) == 4


def test_no_strength_changes_nothing() -> None:
    data = numbered([2, 3])
    assert add_feature_noise(data, 0.0, 0) is data
    assert add_feature_noise(numbered([3]), 0, 0).noise is None
    # The fingerprint that data without noise had before there was any.
    assert data.fingerprint() == "17df3925ece6351ce3fc4fc6a760a4379d0a45a99b0bf3e4b5ec307b04656665"
    assert prepare_setup(RunConfig.make({"clients": 4, "feature_noise": 0.0})).data.noise is None
    plain = train("fedavg", "digits", clients=4, rounds=1)
    zero = train("fedavg", "digits", clients=4, rounds=1, feature_noise=0.0)
    for key in ("weights_sha256", "data_fingerprint"):
        assert plain.summary[key] == zero.summary[key]


def test_arrays_are_shared() -> None:
    data = pictures()
    noisy = add_feature_noise(data, 0.5, 0)
    for field in ("x_train", "x_test", "y_train", "train_index"):
        assert getattr(noisy, field) is getattr(data, field)
    assert "feature noise 0.5" in repr(noisy)
    assert "noise" not in repr(data)


# -- what a model sees ------------------------------------------------------------------------------------------------


def test_hand_arithmetic() -> None:
    data = numbered([1, 1], test=1)
    noisy = add_feature_noise(data, 0.25, 0)
    mine, other = data.x_train[data.train_indices(0)[0], 0], data.x_train[data.train_indices(1)[0], 0]
    assert {mine, other} == {1.0, 2.0}
    assert rows(noisy, "train", data.train_indices(0)).item() == mine - 0.25 * other
    assert rows(noisy, "train", data.train_indices(1)).item() == other - 0.25 * mine
    assert rows(noisy, "test", [0, 1])[:, 0].tolist() == [-1.0 - 0.25 * other, -2.0 - 0.25 * mine]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_comes_after_the_scale_and_before_mean_and_deviation(dtype: torch.dtype) -> None:
    mean, std = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)
    data = add_feature_noise(pictures(preprocess=Preprocess(1 / 255, mean, std)), 0.75, 3)
    inputs = ModelInputs(data, dtype)
    for split, x, indices in (("train", data.x_train, data.train_indices), ("test", data.x_test, data.test_indices)):
        for client in range(3):
            index = indices(client)
            got = inputs.rows(split, index)[0]["x"]
            image = noise_of(data).images[client] / 255
            wanted = (x[index] / 255 - 0.75 * image - np.array(mean)) / np.array(std)
            assert got.dtype == dtype
            np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-12 if dtype == torch.float64 else 2e-6)
    below = inputs.rows("train", data.train_index)[0]["x"] * torch.tensor(std) + torch.tensor(mean)
    assert below.min() < -0.1  # a byte would have wrapped around here
    assert data.x_train.dtype == np.uint8


@pytest.mark.parametrize("stored", [np.float32, np.float64])
def test_reading_changes_neither_samples_nor_noise(stored: Any) -> None:
    data = add_feature_noise(made_data((4, 5), dtype=stored), 0.5, 0)
    before, images = data.x_train.copy(), noise_of(data).images.copy()
    inputs = ModelInputs(data, torch.float32 if stored is np.float32 else torch.float64)
    first = inputs.rows("train", data.train_index)[0]["x"]
    assert torch.equal(first, inputs.rows("train", data.train_index)[0]["x"])
    assert np.array_equal(data.x_train, before)
    assert np.array_equal(noise_of(data).images, images)


@quick
@given(sizes=st.lists(st.integers(2, 8), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_rows_do_not_depend_on_what_is_read_with_them(sizes: list[int], seed: int) -> None:
    data = add_feature_noise(numbered(sizes), 0.3, seed)
    together = rows(data, "train", data.train_index)
    alone = np.concatenate([rows(data, "train", data.train_indices(c)) for c in range(len(sizes))])
    assert np.array_equal(together, alone)
    mixed = np.random.default_rng(seed).permutation(len(data.x_train))
    place = np.argsort(data.train_index)
    assert np.array_equal(rows(data, "train", mixed), together[place[mixed]])
    assert rows(data, "train", []).shape == (0, 1)


def shift(data: FederatedDataset, split: str, index: Any) -> list[float]:
    """What each of these samples was changed by."""
    changed = rows(data, split, index) - rows(replace(data, noise=None), split, index)
    return sorted(set(np.round(changed[:, 0], 9).tolist()))


@quick
@given(sizes=st.lists(st.integers(1, 9), min_size=3, max_size=6), seed=st.integers(0, 99))
def test_one_image_for_training_validation_and_test(sizes: list[int], seed: int) -> None:
    sizes = [*sizes, 4]
    data = add_feature_noise(numbered(sizes, test=3), 0.5, seed)
    wanted = [[-0.5 * float(image)] for image in noise_of(data).images[:, 0]]
    inner = validation_split(data, 0.4, seed)  # clients with one training sample are left out: numbers change
    limited = limit_samples(limit_samples(data, "train", 1, seed), "test", 2, seed)
    assert inner.clients == sum(size > 1 for size in sizes)
    for client in range(data.clients):
        for one in (data, limited):
            assert shift(one, "train", one.train_indices(client)) == wanted[client]
            assert shift(one, "test", one.test_indices(client)) == wanted[client]
        alone = part_of(data, [client])
        assert shift(alone, "train", alone.train_indices(0)) == wanted[client]
        assert shift(alone, "test", alone.test_indices(0)) == wanted[client]
    for client in range(inner.clients):
        own = wanted[int(inner.client_name(client))]
        assert shift(inner, "train", inner.train_indices(client)) == own
        assert shift(inner, "test", inner.test_indices(client)) == own


def test_samples_of_nobody_stay_as_they_are() -> None:
    data = numbered([3, 3])
    data = add_feature_noise(replace(data, train_index=data.train_index[1:], train_offsets=np.array([0, 2, 5])), 1.0, 0)
    free = int(np.flatnonzero(data.owners("train") == -1)[0])
    assert rows(data, "train", [free]).item() == free + 1
    owned = int(data.train_index[0])
    both = rows(data, "train", [free, owned])[:, 0]
    assert both[0] == free + 1
    assert both[1] != owned + 1


def test_owners() -> None:
    data = numbered([2, 3])
    for client in range(2):
        assert sorted(np.flatnonzero(data.owners("train") == client)) == sorted(data.train_indices(client))
        assert np.flatnonzero(data.owners("test") == client).tolist() == data.test_indices(client).tolist()


# -- engines ----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"model": "linear", "feature_noise": 0.25, "rounds": 2, "batch_size": 8}


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "perfedavg"])
def test_engines_agree(algorithm: str) -> None:
    digits = load_data("digits", 4, partition="features:0.5")
    digits = limit_samples(limit_samples(digits, "train", 40, 0), "test", 20, 0)
    serial = train_whole(algorithm, digits, engine="serial", **SETTINGS)
    for engine in EXACT:
        other = train_whole(algorithm, digits, engine=engine, **SETTINGS)
        assert other.sha == serial.sha
        # The weights are the same bit for bit. Where clients are tested one at a time, a loss may be rounded otherwise,
        # and so may what is made of probabilities.
        finer = [f"{whose}_{name}" for whose in ("personal", "global") for name in ("log_loss", "calibration_error")]
        rounded = ("test_loss", *finer)
        for mine, theirs in zip(other.run.clients, serial.run.clients, strict=True):
            for name in (name for name in rounded if name in mine):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-6, abs=0)
            blank = dict.fromkeys(rounded)
            assert mine | blank == theirs | blank
    assert_same_run(train_whole(algorithm, digits, engine="batched", **SETTINGS), serial, 1e-5)
    # The noise is seen at all, in training and in the test alone.
    plain = train_whole(algorithm, digits, engine="serial", **(SETTINGS | {"feature_noise": 0.0}))
    assert plain.sha != serial.sha
    tested = [row["test_loss"] for row in serial.run.clients]
    without = _tested_without_noise(algorithm, digits)
    assert all(a != b for a, b in zip(tested, without, strict=True))


def _tested_without_noise(algorithm: str, data: FederatedDataset) -> list[float]:
    """Test losses of the run with noise in training but none in the test."""

    def change(engine: Any) -> None:
        evaluate = engine.evaluate

        def clean(*args: Any, **kwargs: Any) -> Any:
            inputs = engine.setup.inputs
            noisy = inputs.rows
            bare = ModelInputs(replace(data, noise=None), inputs.dtype)
            inputs.rows = lambda split, index: (bare.rows if split == "test" else noisy)(split, index)
            try:
                return evaluate(*args, **kwargs)
            finally:
                inputs.rows = noisy

        engine.evaluate = clean

    with engines_changed(change):
        run = train(algorithm, data, seed=1, lr=0.1, engine="serial", **SETTINGS)
    return [row["test_loss"] for row in run.clients]


def test_global_accuracy_is_the_mean_over_the_clients_parts() -> None:
    data = add_feature_noise(load_data("digits", 4, partition="features:0.5"), 0.25, 0)
    run = train("fedavg", data, model="linear", rounds=2)
    weight, bias = run.shared.values()
    parts = []
    for client in range(4):
        index = data.test_indices(client)
        x = rows(data, "test", index).reshape(len(index), -1)
        right = (x @ weight.double().numpy().T + bias.double().numpy()).argmax(1) == data.y_test[index]
        parts.append(right.mean())
    assert run.global_accuracy == pytest.approx(np.mean(parts), abs=2e-3)
    assert max(len(data.test_indices(c)) for c in range(4)) - min(len(data.test_indices(c)) for c in range(4)) <= 2


# -- runs -------------------------------------------------------------------------------------------------------------


def test_the_setting_draws_among_the_samples_that_are_kept() -> None:
    values = {"clients": 4, "partition": "features:0.5", "feature_noise": 0.25, "train_samples": 3, "seed": 5}
    data = prepare_setup(RunConfig.make(values)).data
    kept = {data.x_train[row].tobytes() for row in data.train_index}
    assert noise_of(data).strength == 0.25
    assert all(image.tobytes() in kept for image in noise_of(data).images)
    whole = load_data("digits", 4, partition="features:0.5", seed=5)
    wanted = add_feature_noise(limit_samples(whole, "train", 3, 5), 0.25, 5)
    assert data.fingerprint() == wanted.fingerprint()


def test_noise_that_is_there_already_is_kept_and_named() -> None:
    data = add_feature_noise(made_data((4, 5, 6)), 0.5, 9)
    for asked in (0.0, 0.5):
        setup = prepare_setup(RunConfig.make({"feature_noise": asked, "model": "linear"}), data)
        assert setup.data is data
        assert setup.config.feature_noise == 0.5
    with pytest.raises(DataError, match=r"'made' already has feature noise of strength 0\.5"):
        prepare_setup(RunConfig.make({"feature_noise": 0.25, "model": "linear"}), data)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    arguments = ["--clients", "4", "--partition", "features:0.5", "--feature-noise", "0.25", "--rounds", "2", "--quiet"]
    assert main(["train", "fedrep", *arguments, "--out", str(out)]) == 0
    return out


def test_predict_sees_what_the_test_saw(finished: Path) -> None:
    data = load_data("digits", 4, partition="features:0.5")
    run = load_run(finished)
    assert run.config.feature_noise == 0.25
    with (finished / "clients.csv").open() as file:
        accuracies = [float(row["personal_accuracy"]) for row in csv.DictReader(file)]
    inputs = ModelInputs(add_feature_noise(data, 0.25, 0), torch.float32)
    differs = False
    for client, accuracy in enumerate(accuracies):
        index = data.test_indices(client)
        given = inputs_for(run.trained, data.x_test[index], client)
        assert list(given) == ["x"]
        assert torch.equal(given["x"], inputs.arrange(inputs.rows("test", index)[0])["x"])
        assert not torch.equal(given["x"], inputs_for(run.trained, data.x_test[index])["x"])
        right = run.predict(data.x_test[index], client).argmax(1) == data.y_test[index]
        assert right.mean() == accuracy
        with torch.no_grad():
            plain = inputs_for(run.trained, data.x_test[index])
            clean = call(run.model(client), plain).argmax(1).numpy() == data.y_test[index]
        differs |= bool((right != clean).any())
    assert differs


def test_predict_refuses_lost_or_foreign_noise(finished: Path) -> None:
    x = load_data("digits", 4).x_test[:2]
    path = finished / run_folder.NOISE
    path.write_bytes(b"half a fi")
    with pytest.raises(RunError, match=r"feature_noise\.safetensors' is not what the run wrote"):
        load_run(finished).predict(x, 0)
    write_atomically(path, save({"images": torch.zeros(3, 8, 8, 1)}))
    with pytest.raises(RunError, match=r"feature_noise\.safetensors' is not what the run wrote"):
        load_run(finished).predict(x, 0)
    path.unlink()
    with pytest.raises(RunError, match="is missing"):
        load_run(finished).predict(x, 0)


def test_a_run_without_noise_leaves_no_file(tmp_path: Path) -> None:
    train("fedavg", made_data((4, 5)), model="linear", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run" / run_folder.NOISE).exists()


def test_resuming_needs_the_same_noise(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((finished / "summary.json").read_text())
    assert main(["train", "fedrep", "--resume", "--quiet", "--out", str(finished)]) == 0
    assert json.loads((finished / "summary.json").read_text()) == before
    assert main(["train", "fedrep", "--resume", "--feature-noise", "0.5", "--out", str(finished)]) == 2
    assert "feature_noise = 0.25, not 0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "wanted"), [([], 0.25), (["--feature-noise", "0.5"], 0.5), (["--feature-noise", "0"], None)]
)
def test_new_clients_get_noise_as_the_run_had(
    finished: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], wanted: float | None
) -> None:
    seen: list[FederatedDataset] = []
    adapt = few_shot.adapt

    def looking(run: Any, data: FederatedDataset, *args: Any, **kwargs: Any) -> Any:
        seen.append(data)
        return adapt(run, data, *args, **kwargs)

    monkeypatch.setattr(few_shot, "adapt", looking)
    few = ["--shots", "3", "--epochs", "1", "--repeats", "1", "--clients", "3", "--partition", "features:0.5"]
    assert main(["adapt", str(finished), *few, *flags, "--quiet", "--out", str(finished / "new")]) == 0
    assert (None if seen[0].noise is None else seen[0].noise.strength) == wanted
    expected = add_feature_noise(load_data("digits", 3, partition="features:0.5", seed=1000), wanted or 0, 1000)
    assert seen[0].fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("by_name", [True, False])
def test_tuning_and_runs_of_a_comparison_have_the_same_noise(by_name: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FederatedDataset] = []
    run = run_training

    def looking(setup: Any, **kwargs: Any) -> Any:
        seen.append(setup.data)
        return run(setup, **kwargs)

    # By the module itself: under the package's name stands the function of that name.
    monkeypatch.setattr(import_module("commonground.compare.comparing"), "run_training", looking)
    source: Any = "digits" if by_name else load_data("digits", 4, partition="features:0.5")
    split: dict[str, Any] = {"clients": 4, "partition": "features:0.5"} if by_name else {}
    compare(["fedavg", "fedrep"], source, seeds=2, grid={"lr": [0.05, 0.1]}, local_only=False, rounds=1, local_epochs=1,
            model="linear", feature_noise=0.25, options={"head_epochs": 1}, **split)  # fmt: skip
    first, second = seen[:6], seen[6:]  # for each seed two methods, each with two candidates and the run itself
    for same in (first, second):
        assert [np.array_equal(noise_of(d).images, noise_of(same[0]).images) for d in same] == [True] * 6
    assert not np.array_equal(noise_of(first[0]).images, noise_of(second[0]).images)


def test_methods_of_a_comparison_share_the_noise() -> None:
    with pytest.raises(ConfigError, match="feature_noise"):
        compare(["fedavg:feature_noise=0.5"], made_data((4, 5)), seeds=1, rounds=1)


# -- refusals ---------------------------------------------------------------------------------------------------------

tokens = np.array([[[0, 1], [5, 0]], [[1, 1], [6, 0]]], dtype=np.int32)
TEXTS = [(tokens, np.array([0, 1]), tokens, np.array([0, 1]))] * 2


def test_strengths_that_are_refused() -> None:
    data = numbered([2, 3])
    bad: list[Any] = [-1, -1e-9, math.nan, math.inf, "0.5", None, True]
    for strength in bad:
        with pytest.raises(ConfigError, match="it must be a number of at least 0"):
            add_feature_noise(data, strength, 0)
        with pytest.raises(ConfigError):
            FeatureNoise(strength, data.x_train[:2])
    with pytest.raises(ConfigError, match=r"strength 0 is none"):
        FeatureNoise(0.0, data.x_train[:2])
    with pytest.raises(ConfigError, match=r"feature_noise is -1; it must be a number of at least 0"):
        add_feature_noise(data, -1, 0)
    for value, message in ((-1, "'feature_noise' is -1: .*greater than or equal to 0"), (math.inf, "finite number")):
        with pytest.raises(ConfigError, match=message):
            RunConfig.make({"feature_noise": value})


def test_data_that_are_refused() -> None:
    with pytest.raises(DataError, match="another client's image, and 'numbered' has one client only"):
        add_feature_noise(numbered([3]), 0.5, 0)
    texts = FederatedDataset.from_arrays(TEXTS, name="texts")
    with pytest.raises(DataError, match="feature noise needs samples of numbers, and 'texts' holds tokens"):
        add_feature_noise(texts, 0.5, 0)
    noisy = add_feature_noise(numbered([2, 3]), 0.5, 0)
    with pytest.raises(DataError, match=r"'numbered' already has feature noise of strength 0\.5"):
        add_feature_noise(noisy, 0.5, 0)
    with pytest.raises(DataError, match="one client only"):
        train("fedavg", "digits", clients=1, rounds=1, feature_noise=0.5)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            np.zeros((3, 1)),
            r"noise of 'numbered' is float64 \(3, 1\); one sample per client, float64 \(2, 1\), is needed",
        ),
        (np.zeros((2, 2)), r"is float64 \(2, 2\); one sample per client"),
        (np.zeros((2, 1), np.float32), r"is float32 \(2, 1\); one sample per client, float64"),
        (np.array([[0.0], [math.nan]]), r"the feature noise of client 1 of 'numbered' is not finite"),
    ],
)
def test_noise_that_does_not_fit(images: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(numbered([2, 3]), noise=FeatureNoise(0.5, images))


def test_tokens_take_no_noise() -> None:
    texts = FederatedDataset.from_arrays(TEXTS, name="texts")
    with pytest.raises(DataError, match="feature noise needs samples of numbers, and 'texts' holds tokens"):
        replace(texts, noise=FeatureNoise(0.5, texts.x_train[:2]))
