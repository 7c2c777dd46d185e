"""Folders of pictures: who, what and which part the folders say; sizes, colours, damage; the command."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.data.arrays import Preprocess
from commonground.data.sources.images import load_images
from commonground.data.tables.options import TableOptions
from commonground.errors import CommonGroundError, ConfigError, DataError

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, pixels: np.ndarray, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, **options)
    return path


def made(root: Path, clients: tuple[str, ...] = ("ann", "bob"), each: int = 8, side: int = 16) -> Path:
    """Cats are dark and dogs bright, a little noise on each."""
    rng = np.random.default_rng(0)
    for client in clients:
        for place, label in enumerate(("cat", "dog")):
            for i in range(each):
                picture(root / client / label / f"{i}.png", rng.integers(0, 60, (side, side)) + 150 * place)
    return root


def test_folders_say_whose_and_what(tmp_path: Path) -> None:
    root = made(tmp_path / "pets")
    (root / "ann" / "cat" / "notes.txt").write_text("no picture")
    (root / "ann" / "cat" / ".hidden.png").write_text("no picture")
    data = cg.load_data(root)
    assert (data.name, data.clients, data.client_names, data.class_names) == ("pets", 2, ("ann", "bob"), ("cat", "dog"))
    assert data.x_train.shape == (24, 16, 16, 1)
    assert data.x_train.dtype == np.uint8
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([12, 12], [4, 4])
    own = {tuple(x.ravel()) for rows, x in ((data.train_indices(1), data.x_train), (data.test_indices(1), data.x_test))
           for x in x[rows]}  # fmt: skip
    files = sorted((root / "bob").rglob("*.png"))
    assert own == {tuple(np.asarray(Image.open(file)).ravel()) for file in files}
    bright = data.x_train.reshape(24, -1).mean(1) > 100
    np.testing.assert_array_equal(bright, data.y_train == 1)
    again = cg.load_data(root)
    assert again.fingerprint() == data.fingerprint()
    assert cg.load_data(root, seed=1).fingerprint() != data.fingerprint()


def test_without_clients_they_are_dealt(tmp_path: Path) -> None:
    data = cg.load_data(made(tmp_path / "one", clients=(".",), each=20), clients=4)
    assert (data.clients, data.class_names) == (4, ("cat", "dog"))
    assert data.class_counts("test").sum(0).tolist() == [5, 5]


def test_parts_and_few_pictures(tmp_path: Path) -> None:
    made(tmp_path / "root" / "train", each=3)
    made(tmp_path / "root" / "test", each=2)
    data = cg.load_data(tmp_path / "root")
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([6, 6], [4, 4])
    with pytest.raises(ConfigError, match=r"a test share of 0\.5 says nothing"):
        cg.load_data(tmp_path / "root", test_share=0.5)
    with pytest.raises(ConfigError, match=r"a test seed of 3 says nothing; leave out the seed"):
        cg.load_data(tmp_path / "root", test_seed=3)
    root = made(tmp_path / "few")
    picture(root / "eve" / "cat" / "0.png", np.zeros((16, 16)))
    with pytest.raises(DataError, match="client 'eve' has 1 row; at least 2 are needed"):
        cg.load_data(root)
    assert cg.load_data(root, few_rows="shared").client_names == ("ann", "bob")


def test_held_out_pictures_may_have_a_seed_of_their_own(tmp_path: Path) -> None:
    root = made(tmp_path / "root", each=6)
    first, second = (cg.load_data(root, seed=seed, test_seed=2).fingerprint() for seed in (0, 1))
    assert first == second == cg.load_data(root, seed=2).fingerprint() != cg.load_data(root, seed=1).fingerprint()


def test_sizes_are_made_equal_if_somebody_says_how(tmp_path: Path) -> None:
    root = made(tmp_path / "root", each=2)
    wide = picture(root / "bob" / "dog" / "9.jpg", np.full((20, 40), 200))
    with pytest.raises(DataError, match=r"9\.jpg has 20×40 pixels .* and .*0\.png 16×16; .* as in --image-size 16x16"):
        cg.load_data(root)
    data = cg.load_data(root, image_size="8x12")
    assert data.sample_shape == (8, 12, 1)
    assert cg.load_data(root, image_size=8).sample_shape == (8, 8, 1)
    wanted = np.asarray(Image.open(wide).resize((12, 8), Image.Resampling.BILINEAR))
    assert any((x[..., 0] == wanted).all() for x in (*data.x_train, *data.x_test))


def test_colours_and_turned_pictures(tmp_path: Path) -> None:
    root = made(tmp_path / "root", each=2)
    red = np.zeros((16, 16, 4))
    red[:8, :, 0], red[..., 3] = 255, 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture(root / "bob" / "cat" / "9.png", red, exif=exif)
    source = load_images(root)
    assert source.x_train.shape[1:] == (16, 16, 3)
    whole = np.concatenate([source.x_train, source.x_test])
    turned = [x for x in whole if (x[..., 0] != x[..., 1]).any()]
    assert len(turned) == 1
    assert turned[0][12, 3].tolist() == [255, 0, 0]
    assert turned[0][3, 3].tolist() == [0, 0, 0]


def test_transparent_parts_are_told(tmp_path: Path) -> None:
    """A shape that is in them alone is lost."""
    root = made(tmp_path / "root", each=2)
    assert not [note for note in load_images(root).origin.about["notes"] if "transparent" in note]
    whole = np.full((16, 16, 4), 77)
    whole[..., 3] = 255
    picture(root / "bob" / "cat" / "8.png", whole)
    assert not [note for note in load_images(root).origin.about["notes"] if "transparent" in note]
    icon = whole.copy()
    icon[4:9, 4:9, 3] = 0
    picture(root / "bob" / "cat" / "9.png", icon)
    said = "transparent parts, which are taken for the colour that is stored there"
    assert f"1 picture has {said}" in load_images(root).origin.about["notes"]
    Image.fromarray(icon.astype(np.uint8)).convert("P").save(root / "ann" / "cat" / "9.png", transparency=0)
    Image.fromarray(icon[..., 2:].astype(np.uint8), "LA").save(root / "ann" / "dog" / "9.png")
    assert f"3 pictures have {said}" in load_images(root).origin.about["notes"]


def damaged(root: Path, how: str) -> None:
    file = root / "ann" / "cat" / "bad.png"
    if how == "cut":
        whole = (root / "ann" / "cat" / "0.png").read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
    elif how == "text":
        file.write_text("this is no picture")
    elif how == "empty":
        file.touch()
    elif how == "deep":
        Image.fromarray(np.full((16, 16), 40_000, dtype=np.uint16)).save(file)
    elif how == "huge":
        Image.new("1", (300, 400)).save(file)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("cut", r"bad\.png cannot be read as a picture: "),
        ("text", r"bad\.png cannot be read as a picture: cannot identify image file"),
        ("empty", r"bad\.png cannot be read as a picture: "),
        ("deep", r"bad\.png has more than 8 bits for a pixel's channel, and pictures of 8 bits are read; convert it"),
        ("huge", r"bad\.png cannot be read as a picture: Image size .* exceeds limit"),
    ],
)
def test_a_damaged_picture_is_named(
    how: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)  # what a packed file may become in memory
    root = made(tmp_path / "root", each=2)
    damaged(root, how)
    with pytest.raises(DataError, match=says):
        cg.load_data(root)
    assert main(["train", "fedavg", "--data", str(root), "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0
    assert "bad.png" in told


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drop": "a"}, "is a folder of pictures, no table"),
        ({"client_column": "who"}, "the column is called 'client'"),
        ({"image_size": "0"}, "image_size is '0'; it is as 32 or HEIGHTxWIDTH"),
        ({"image_size": "3x4x5"}, "it is as 32 or HEIGHTxWIDTH"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(CommonGroundError, match=says):
        cg.load_data(made(tmp_path / "root", each=2), **options)


def test_folders_of_another_form(tmp_path: Path) -> None:
    root = made(tmp_path / "root", each=2)
    deep = picture(root / "ann" / "cat" / "more" / "0.png", np.zeros((16, 16)))
    with pytest.raises(DataError, match="lies 3 folders deep; pictures lie in CLIENT/CLASS/ or in CLASS/"):
        cg.load_data(root)
    deep.unlink()
    picture(root / "ann" / "0.png", np.zeros((16, 16)))
    with pytest.raises(DataError, match="do not lie equally deep"):
        cg.load_data(root)
    (tmp_path / "t.csv").write_text("a,label\n1,0\n2,1\n")
    with pytest.raises(ConfigError, match="are no folder of pictures, which --image-size 8 resizes"):
        cg.load_data(tmp_path / "t.csv", clients=1, image_size=8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="unknown data"):
        cg.load_data(tmp_path / "empty", clients=2)
    with pytest.raises(DataError, match="holds no pictures"):
        load_images(tmp_path / "empty", options=TableOptions())


def test_by_command(tmp_path: Path) -> None:
    root = made(tmp_path / "pets", each=12)
    assert main(["train", "fedrep", "--data", str(root), "--rounds", "3", "--image-size", "20x16", "--quiet",
                 "--out", str(tmp_path / "run")]) == 0  # fmt: skip
    run = cg.load_run(tmp_path / "run")
    assert (run.config.model, run.config.image_size, run.trained.split["sample_shape"]) == ("cnn", "20x16", [20, 16, 1])
    assert run.personal_accuracy["mean"] == 1
    dark, bright = np.full((1, 20, 16, 1), 20, np.uint8), np.full((1, 20, 16, 1), 180, np.uint8)
    assert [int(run.predict(x, "bob").argmax()) for x in (dark, bright)] == [0, 1]


def test_who_has_few_pictures_is_counted_and_served_where_that_can_be(tmp_path: Path) -> None:
    root = made(tmp_path / "few")
    picture(root / "eve" / "cat" / "0.png", np.zeros((16, 16)))
    read: dict[str, Any] = {"few_rows": "shared", "model": "mlp", "rounds": 1}
    run = cg.train("fedavg", str(root), **read)
    assert run.summary["table"]["few_rows"] == {"how": "shared", "min_rows": 2, "clients": 1, "rows": 1}
    assert run.summary["table"]["test_rows"] == "25% at random"
    with pytest.raises(ConfigError, match="serves clients with few rows by the global model, and FedRep has none"):
        cg.train("fedrep", str(root), **read)


def test_links_to_folders_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    root, elsewhere = made(tmp_path / "pets"), made(tmp_path / "elsewhere", clients=("dan", "eve"))
    (root / "dan").symlink_to(elsewhere / "dan")
    (root / "ann" / "bird").symlink_to(elsewhere / "eve" / "cat")
    data = cg.load_data(root)
    assert (data.client_names, data.class_names) == (("ann", "bob", "dan"), ("bird", "cat", "dog"))
    assert (data.train_sizes + data.test_sizes).tolist() == [24, 16, 16]
    (root / "bob" / "dog" / "loop").symlink_to(root / "bob")
    with pytest.raises(DataError, match="loop is a link to a folder that it lies in"):
        cg.load_data(root)


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, scan = made(tmp_path / "pets"), os.scandir

    def scanned(path: Any) -> Any:
        if str(path).endswith("bob"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scanned)
    with pytest.raises(DataError, match=r"the folder '.*bob' cannot be read: "):
        cg.load_data(root)


def test_blanks_around_a_folders_name_are_no_part_of_it(tmp_path: Path) -> None:
    root = made(tmp_path / "pets")
    (root / "ann").rename(root / " ann ")
    (root / "bob" / "cat").rename(root / "bob" / "cat ")
    data = cg.load_data(root)
    assert (data.client_names, data.class_names) == (("ann", "bob"), ("cat", "dog"))


def test_clients_with_few_pictures_that_stay_are_no_others(tmp_path: Path) -> None:
    root = made(tmp_path / "pets")
    for i in range(2):
        picture(root / "eve" / "cat" / f"{i}.png", np.zeros((16, 16)))
    about = cg.load_data(root, min_rows=5).about
    assert about["few_rows"]["clients"] == 1
    assert "few_clients" not in about


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    root = made(tmp_path / "pets")
    (root / "ann" / "bob").symlink_to(root / "bob")
    (root / "bob" / "ann").symlink_to(root / "ann")
    with pytest.raises(DataError, match="is a link to a folder that it lies in"):
        cg.load_data(root)


def test_folders_without_pictures_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "pets")
    assert cg.load_data(root).about["notes"] == []
    (root / "ann" / "bird").mkdir()
    (root / "carl" / "cat").mkdir(parents=True)
    assert (
        main(["train", "local", "--data", str(root), "--model", "mlp", "--rounds", "1", "--out", str(tmp_path / "r")])
        == 0
    )
    assert "pets: 2 folders hold no pictures: 'ann/bird', 'carl/cat'" in capsys.readouterr().err


def test_what_else_a_folder_may_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "pets")
    assert main(["inspect", str(root)]) == 2
    assert "is a folder of pictures, of which there are no columns; `train --data` reads it" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test", "Validation"), ("val", "test")])
def test_other_parts_are_no_clients(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        made(tmp_path / "root" / name, clients=(".",), each=2)
    with pytest.raises(DataError, match="pictures are split by two folders, train and test: put the others' pictures"):
        cg.load_data(tmp_path / "root", clients=2)


def test_parts_are_told_in_any_case(tmp_path: Path) -> None:
    made(tmp_path / "root" / "Train", each=3)
    made(tmp_path / "root" / "TEST", each=2)
    data = cg.load_data(tmp_path / "root")
    assert (data.client_names, data.train_sizes.tolist(), data.test_sizes.tolist()) == (("ann", "bob"), [6, 6], [4, 4])


def test_new_clients_pictures_are_resized_as_the_runs_were(tmp_path: Path) -> None:
    out, new = str(tmp_path / "run"), made(tmp_path / "new", clients=("eve",), side=24)
    read = ["--data", str(made(tmp_path / "pets", side=20)), "--model", "mlp", "--image-size", "16", "--rounds", "1"]
    assert main(["train", "fedavg", *read, "--quiet", "--out", out]) == 0
    assert main(["adapt", out, "--data", str(new), "--shots", "2"]) == 0


@pytest.mark.parametrize("clients", [("eve",), ("eve", "fay", "gil")])
def test_new_clients_are_the_folders_not_as_many_as_the_run_had(clients: tuple[str, ...], tmp_path: Path) -> None:
    out, new = str(tmp_path / "run"), made(tmp_path / "new", clients=clients)
    read = ["--data", str(made(tmp_path / "pets")), "--model", "mlp", "--rounds", "1", "--quiet", "--out", out]
    assert main(["train", "fedavg", *read]) == 0
    assert main(["adapt", out, "--data", str(new), "--shots", "2"]) == 0
    assert main(["adapt", out, "--data", str(new), "--keep"]) == 0
    assert cg.load_run(out).trained.known.names == ["ann", "bob", *clients]


# -- predictions ----------------------------------------------------------------------------------------------------


def _said(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


@pytest.mark.parametrize("by", ["command", "python"])
def test_each_picture_is_answered_by_its_own_client(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = made(tmp_path / "pets", side=20)
    for lone in ("eve", "dan"):
        picture(root / lone / "cat" / "0.png", np.full((20, 20), 30))
    out = str(tmp_path / "run")
    if by == "command":
        read = ["--few-rows", "pool", "--min-rows", "3", "--image-size", "16"]
        assert (
            main(["train", "fedrep", "--data", str(root), "--model", "mlp", "--rounds", "3", *read, "--out", out]) == 0
        )
    else:
        data = cg.load_data(root, few_rows="pool", min_rows=3, image_size=16)
        cg.train("fedrep", data, model="mlp", rounds=3, out=out)
    new = made(tmp_path / "new", clients=("bob", "eve", "ann"), each=3, side=20)
    capsys.readouterr()
    assert main(["predict", out, str(new)]) == 0
    told = capsys.readouterr()
    header, *said = _said(told.out)
    assert header == ["sample", "client", "file", "class", "probability"]
    run = cg.load_run(out)
    right = 0
    for number, (sample, client, file, label, probability) in enumerate(said):
        pixels = np.asarray(Image.open(new / file).resize((16, 16), Image.Resampling.BILINEAR))[None, :, :, None]
        wanted = run.predict(pixels, "(few rows)" if client == "eve" else client)[0]
        assert (int(sample), file.split("/")[0], label) == (number, client, ("cat", "dog")[int(wanted.argmax())])
        assert float(probability) == pytest.approx(wanted.max(), abs=1e-5)
        right += file.split("/")[1] == label
    assert len(said) == 18
    assert f"accuracy {100 * right / 18:.1f} % over 18 rows" in told.err

    # One picture, and a folder that says nothing of its pictures.
    one = new / "bob" / "dog" / "1.png"
    assert main(["predict", out, str(one), "--client", "bob"]) == 0
    assert _said(capsys.readouterr().out)[1][1:] == [
        "1.png",
        *next(row[3:] for row in said if row[2] == "bob/dog/1.png"),
    ]
    assert main(["predict", out, str(one.parent), "--client", "bob"]) == 0
    assert [row[1] for row in _said(capsys.readouterr().out)] == ["file", "0.png", "1.png", "2.png"]
    for words, sentence in (
        ([str(one)], "has no folders of clients; give --client ID (FedRep has no global model)"),
        ([str(tmp_path / "no.png"), "--client", "bob"], "no.png' does not exist"),
        ([str(tmp_path / "no.png")], "no.png' does not exist"),
        ([str(tmp_path / "nowhere")], "nowhere' does not exist"),
        ([str(made(tmp_path / "x", clients=("zoe",)))], "the first is 'zoe'"),
        ([str(one), "--client", "bob", "--encoding", "utf-8"], "--encoding says nothing of"),
        ([str(picture(tmp_path / "c.png", np.full((20, 20, 3), (9, 200, 9)))), "--client", "bob"], "has colours, and"),
    ):
        assert main(["predict", out, *words]) == 2
        assert sentence in capsys.readouterr().err


def test_whose_a_picture_is_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "pets", clients=("0", "1"))
    out = str(tmp_path / "dealt")
    dealt = ["--partition", "iid", "--clients", "2", "--model", "mlp", "--rounds", "1"]
    assert main(["train", "fedrep", "--data", str(root), *dealt, "--out", out]) == 0
    capsys.readouterr()
    assert main(["predict", out, str(root)]) == 2  # its clients are called 0 and 1 as well
    assert f"the clients of the run in '{out}' are no folders; give --client ID (FedRep" in capsys.readouterr().err
    assert main(["predict", out, str(root), "--client", "0"]) == 0
    assert _said(capsys.readouterr().out)[0] == ["sample", "file", "class", "probability"]


def test_clients_with_few_pictures_are_served_by_the_global_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = made(tmp_path / "pets")
    picture(root / "eve" / "cat" / "0.png", np.full((16, 16), 30))
    out = str(tmp_path / "run")
    run = cg.train("fedavg", cg.load_data(root, few_rows="shared"), model="mlp", rounds=1, finetune_epochs=1, out=out)
    assert main(["predict", out, str(root / "eve" / "cat"), "--client", "eve"]) == 2
    assert "took no part, having few rows: the global model serves it" in capsys.readouterr().err
    run = cg.train("fedavg", cg.load_data(root, few_rows="shared"), model="mlp", rounds=1, out=tmp_path / "plain")
    assert main(["predict", str(tmp_path / "plain"), str(root)]) == 0
    (eve,) = (row for row in _said(capsys.readouterr().out) if row[1] == "eve")
    wanted = run.predict(np.full((1, 16, 16, 1), 30, dtype=np.uint8)).max()
    assert float(eve[-1]) == pytest.approx(wanted, abs=1e-5)


def test_folders_of_clients_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    cg.train("fedrep", cg.load_data(made(tmp_path / "pets")), model="mlp", rounds=1, out=out)
    for client in ("ann", "bob"):
        picture(tmp_path / "new" / client / "x.png", np.full((16, 16), 60))
    assert main(["predict", out, str(tmp_path / "new")]) == 0
    told = capsys.readouterr()
    assert [row[1:3] for row in _said(told.out)[1:]] == [["ann", "ann/x.png"], ["bob", "bob/x.png"]]
    assert "accuracy" not in told.err
    picture(tmp_path / "new" / "cover.png", np.full((16, 16), 60))
    assert main(["predict", out, str(tmp_path / "new"), "--client", "ann"]) == 2
    assert "itself and in folders below it; name one of these, or move the former" in capsys.readouterr().err


def test_pictures_are_asked_of_runs_on_pictures_of_their_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cg.train("fedavg", cg.load_data(made(tmp_path / "pets")), model="mlp", rounds=1, out=tmp_path / "run")
    wide = picture(tmp_path / "wide.png", np.zeros((8, 32)))  # of as many pixels
    assert main(["predict", str(tmp_path / "run"), str(wide), "--global"]) == 2
    assert "has 8×32 pixels (height × width), and the run was trained on 16×16" in capsys.readouterr().err
    assert run.trained.split.get("image_size") is None
    rng = np.random.default_rng(0)
    numbers = [(rng.random((8, 16, 16, 1)), np.arange(8) % 2, rng.random((4, 16, 16, 1)), np.arange(4) % 2)] * 2
    fractions = cg.FederatedDataset.from_arrays(numbers)  # which bytes would not be
    for name, data in (("digits", cg.load_data("digits", 3)), ("fractions", fractions)):
        cg.train("fedavg", data, model="mlp", rounds=1, out=tmp_path / name)
        assert main(["predict", str(tmp_path / name), str(wide), "--global"]) == 2
        assert "was not trained on pictures; give an array (.npy)" in capsys.readouterr().err


def test_folders_are_no_targets_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)

    def drawn(count: int) -> np.ndarray:
        return rng.integers(0, 255, (count, 16, 16, 1)).astype(np.uint8)

    numbers = [(drawn(8), rng.normal(size=(8, 1)), drawn(4), rng.normal(size=(4, 1)))] * 2
    how = Preprocess(1 / 255, (0.5,), (0.5,))
    data = cg.FederatedDataset.from_arrays(numbers, task="regression", preprocess=how)
    cg.train("fedavg", data, model="mlp", rounds=1, out=tmp_path / "run")
    pets = made(tmp_path / "pets", each=1)
    assert main(["predict", str(tmp_path / "run"), str(pets), "--global"]) == 0
    told = capsys.readouterr()
    assert len(_said(told.out)) == 5
    assert "over" not in told.err  # no metric


def test_grey_pictures_are_read_as_those_with_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "pets")
    picture(root / "ann" / "cat" / "red.png", np.full((16, 16, 3), (90, 10, 10)))
    run = cg.train("fedavg", cg.load_data(root), model="mlp", rounds=1, out=tmp_path / "run")
    grey = picture(tmp_path / "grey.png", np.full((16, 16), 70))
    assert main(["predict", str(tmp_path / "run"), str(grey), "--global"]) == 0
    wanted = run.predict(np.full((1, 16, 16, 3), 70, dtype=np.uint8)).max()
    assert float(_said(capsys.readouterr().out)[1][-1]) == pytest.approx(wanted, abs=1e-5)
