"""A folder of pictures (:mod:`~commonground.data.sources.image_folders`), read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Preprocess
from commonground.data.names import sorted_names
from commonground.data.source import Origin, Source
from commonground.data.sources.image_folders import PictureFile, files_in
from commonground.data.sources.parted import check_plain, parted
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import Owners
from commonground.errors import ConfigError, DataError
from commonground.extras import pip_install
from commonground.quoting import escaped

__all__ = ["BYTE", "CLIENT", "Pictures", "load_images", "read_pictures"]

CLIENT = "client"
"""The column that says whose a picture is."""

_GREY, _DEEP = ("1", "L", "LA"), ("I", "F")  # Pillow's modes; the deep ones have more than 8 bits

BYTE = 1 / 255
"""By which stored bytes are scaled."""

Pictures = npt.NDArray[np.uint8]


def load_images(path: Path, *, seed: int = 0, options: TableOptions | None = None) -> Source:
    """Pictures below folders of clients and classes, as bytes [N, height, width, channels].

    Pictures that are all grey have one channel, others red, green and blue; what is transparent in them is dropped, and
    they are turned as their camera says. They enter the model between −1 and 1. Folders ``train`` and ``test`` above
    all others say what is tested; otherwise a share of each client's pictures (of each class's, without clients) is
    held out as of a table's rows. Hidden files and files of other kinds are left alone; links are followed.

    Args:
        path: the folder.
        seed: keys the hold-out.
        options: of a table those on clients with few rows and the share of test rows; and ``image_size``, to which all
            pictures are resized (bilinear, sides stretched): by default they must have one size.

    Raises:
        ConfigError: Pillow is not installed, or an option is one of tables alone.
        DataError: the folders have no such form, a picture cannot be read (its file is named) or has another size.
    """
    options = options or TableOptions()
    check_plain(path, options, CLIENT, "a folder of pictures", "folders")
    files, notes = files_in(path)
    x = read_pictures(files, options.size, note=notes.append)
    classes = sorted_names(np.array([file.label for file in files]))
    y = np.array([classes.index(file.label) for file in files], dtype=np.int64)
    names = sorted_names(np.array([file.client for file in files]))
    places = {name: place for place, name in enumerate(names)}
    owners = Owners(list(names), np.array([places[file.client] for file in files], dtype=np.int64))
    is_test = np.array([file.part == "test" for file in files]) if files[0].part else None
    clients = files[0].client != ""
    by = None if clients else Owners(list(classes), y)
    found = parted(path, owners, is_test, options, seed, by, "pictures")
    owners = found.owners
    channels = x.shape[-1]
    about = TableSchema((), (), "classification", classes, few_rows=owners.few, split=found.how, notes=tuple(notes),
                        scaling="none")  # fmt: skip
    resized = {} if options.size is None else {"image_size": options.image_size}
    return Source(
        name=path.name,
        **found.arrays(x, y, CLIENT if clients else None),
        classes=len(classes),
        class_names=classes,
        preprocess=Preprocess(BYTE, (0.5,) * channels, (0.5,) * channels),
        origin=Origin(
            read={**about.summary(), **owners.about_few(), **resized},
            test_names=np.array([file.name(path) for file in files])[found.test],
        ),
    )


# -- pictures -------------------------------------------------------------------------------------------------------


def read_pictures(
    files: Sequence[PictureFile],
    size: tuple[int, int] | None = None,
    wanted: tuple[int, int] | None = None,
    note: Callable[[str], None] | None = None,
) -> Pictures:
    """Pictures as bytes [N, height, width, 1 or 3]; grey ones among coloured ones get three equal channels.

    Args:
        files: at least one.
        size: height and width to which all are resized; by default they must have one size.
        wanted: height and width that a run's pictures have, which these must have as well.
        note: hears how many pictures have transparent parts, of which the colours are read.

    Raises:
        ConfigError: Pillow is not installed.
        DataError: a picture cannot be read (its file is named) or has another size.
    """
    read = [_read(file.path, size) for file in files]
    found, transparent = [picture for picture, _ in read], [is_so for _, is_so in read]
    if any(transparent) and note is not None:
        have = "picture has" if sum(transparent) == 1 else "pictures have"
        note(f"{sum(transparent):,} {have} transparent parts, which are taken for the colour that is stored there")
    for file, picture in zip(files, found, strict=True):
        if wanted is not None and picture.shape[:2] != wanted:
            (h, w), (h0, w0) = picture.shape[:2], wanted
            raise DataError(
                f"{file.path} has {h}×{w} pixels (height × width), and the run was trained on {h0}×{w0}; runs that are "
                "trained with --image-size resize all pictures, also new ones"
            )
        if picture.shape[:2] != found[0].shape[:2]:
            (h, w), (h0, w0) = picture.shape[:2], found[0].shape[:2]
            raise DataError(
                f"{file.path} has {h}×{w} pixels (height × width) and {files[0].path} {h0}×{w0}; say to which size all "
                f"are resized, as in --image-size {min(h, h0)}x{min(w, w0)}"
            )
    channels = max(picture.shape[2] for picture in found)
    whole = np.empty((len(found), *found[0].shape[:2], channels), dtype=np.uint8)
    for place, picture in enumerate(found):
        whole[place] = picture
    return whole


def _read(path: Path, size: tuple[int, int] | None) -> tuple[Pictures, bool]:
    """A picture as bytes [height, width, 1 or 3], and whether parts of it are transparent."""
    image = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.Image.DecompressionBombWarning)
            with image.Image.open(path) as opened:
                deep = opened.mode.split(";")[0] in _DEEP
                picture = image.ImageOps.exif_transpose(opened)
                seen_through = _is_seen_through(picture)
                picture = picture.convert("L" if picture.mode in _GREY else "RGB")
            if size is not None:
                picture = picture.resize(size[::-1], image.Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow raises many kinds for a file that is no picture
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as a picture: {escaped(first)}") from None
    if deep:
        raise DataError(
            f"{path} has more than 8 bits for a pixel's channel, and pictures of 8 bits are read; convert it"
        )
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1), seen_through


def _is_seen_through(picture: Any) -> bool:
    """Whether any part of a picture is transparent."""
    may_be = picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info
    return may_be and bool(picture.convert("RGBA").getchannel("A").getextrema()[0] < 255)


def _pillow() -> Any:
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ConfigError(f"a folder of pictures needs the extra: {pip_install('images')}") from None
    return PIL
