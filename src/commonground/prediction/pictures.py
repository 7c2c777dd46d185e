"""A finished run's models on pictures: a file, or a folder as it is trained on, each by its own client's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from commonground.data.sources.image_folders import PictureFile, files_in, is_picture, pictures_in
from commonground.data.sources.images import BYTE, CLIENT, Pictures, read_pictures
from commonground.data.tables.options import TableOptions
from commonground.data.tables.raw import raw_of_frame
from commonground.engine.named_columns import named_columns
from commonground.engine.run import Run
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError
from commonground.prediction.tables import Note, TableAnswers, Whose, answers_of

__all__ = ["holds_pictures", "predict_pictures"]

_FILE, _CLASS = "file", "class"


def holds_pictures(path: Path) -> bool:
    """Whether a path is that of a picture, or of a folder."""
    return path.is_dir() or is_picture(path.name)


def predict_pictures(run: Run, path: Path, whose: Whose, note: Note) -> TableAnswers:
    """What the clients' own models say of pictures.

    Args:
        run: a run on pictures.
        path: a picture; a folder of them; or folders of clients and classes, or of classes, as they are trained on.
        whose: models are asked; folders say pictures' clients.
        note: hears what is worth knowing of the folder.

    Returns:
        As of a table, with the pictures' files; the metric where folders say the classes.

    Raises:
        ConfigError: the run is of no pictures, or nobody said whose model to ask.
        DataError: a picture is missing, of another size or in colours where the run knows none, or a client is unknown.
    """
    trained = run.trained
    if len(trained.format.sample_shape) != 3 or trained.format.preprocess.scale != BYTE:
        raise ConfigError(f"{trained.where} was not trained on pictures; give an array (.npy) of samples as it was")
    files, notes = _files(path, trained)
    for sentence in notes:
        note(f"{path.name}: {sentence}")
    x = _as_trained(trained, path, files)
    columns = {_FILE: [file.name(path) for file in files]}
    by_folder = trained.split.get("client_column") == CLIENT
    if files[0].client and by_folder:
        columns = {CLIENT: [file.client for file in files], **columns}
    elif not whose.said:
        lacks = f"'{path}' has no folders of clients" if by_folder else f"the clients of {trained.where} are no folders"
        whose = Whose(trained.only_client(lacks))
    if files[0].label and trained.task.softmax:
        columns[_CLASS] = [file.label for file in files]
    import pandas as pd

    raw = replace(raw_of_frame(pd.DataFrame(columns)), path=path)
    return answers_of(trained, raw, named_columns(trained, _CLASS, CLIENT, (_FILE,)), x, whose, note)


def _files(path: Path, trained: Trained) -> tuple[list[PictureFile], list[str]]:
    """The pictures of a path, and notes; folders of one level that are called as clients and no classes are theirs."""
    if not path.exists():
        raise DataError(f"the input file '{path}' does not exist")
    if not path.is_dir():
        return [PictureFile(path, "", "", "")], []
    if plain := pictures_in(path):
        return plain, []
    files, notes = files_in(path)
    names = {file.label for file in files if not file.client}
    clients = all(trained.known.find(name) is not None for name in names)
    if names and clients and not names <= set(trained.split["class_names"]):
        files = [replace(file, client=file.label, label="") for file in files]
    return files, notes


def _as_trained(trained: Trained, path: Path, files: list[PictureFile]) -> Pictures:
    """Pictures of the size and with the channels of the run's."""
    height, width, channels = trained.format.sample_shape
    size = trained.split.get("image_size") or trained.config.image_size
    x = read_pictures(files, TableOptions(image_size=size).size, (height, width))
    if x.shape[3] > channels:
        raise DataError(f"'{path}' has colours, and the run was trained on grey pictures")
    return np.repeat(x, channels, axis=3) if x.shape[3] < channels else x
