"""What a finished run's models are asked, by what they were trained on: samples, texts, instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from commonground.data.tables.textfile import check_unsaid
from commonground.engine.predictions import predictions_of
from commonground.engine.run import Run
from commonground.errors import ConfigError
from commonground.name_lists import names_in
from commonground.prediction.samples import read_samples
from commonground.prediction.texts import answer, classify, judged, read_instructions, read_texts

__all__ = ["Predictor", "predictor_of"]

Note = Callable[[str], None]


class Predictor(ABC):
    """A run's models, asked by files.

    Args:
        run: the run.
        separator, encoding: of tables in text files; found if not given.
    """

    def __init__(self, run: Run, separator: str | None = None, encoding: str | None = None) -> None:
        self.run, self.separator, self.encoding = run, separator, encoding

    @abstractmethod
    def table(self, path: Path, client: int | None, note: Note) -> tuple[list[str], list[list[str]]]:
        """What a client's own model (None: the global one) says of the samples in a file.

        Args:
            path: the file.
            client: its number.
            note: hears what is worth knowing of the file.

        Returns:
            The columns' names and a row for each sample.

        Raises:
            ConfigError: an impossible separator or encoding, or one of a file that has none.
            DataError: the file is missing, of another kind, or does not fit the run.
        """


class _Scores(Predictor):
    """Classes, numbers or labels, as the run's task writes them."""

    def table(self, path: Path, client: int | None, note: Note) -> tuple[list[str], list[list[str]]]:
        """See :meth:`Predictor.table`."""
        return self.run.trained.task.table(self._predicted(path, client, note), self.run.trained.split["class_names"])

    @abstractmethod
    def _predicted(self, path: Path, client: int | None, note: Note) -> npt.NDArray[np.float64]:
        """[samples, columns]."""


class SamplePredictor(_Scores):
    """Of samples of numbers."""

    def _predicted(self, path: Path, client: int | None, note: Note) -> npt.NDArray[np.float64]:
        return predictions_of(self.run.trained, read_samples(path, self.separator, self.encoding), client)


class TextPredictor(_Scores):
    """Of texts or pairs."""

    def _predicted(self, path: Path, client: int | None, note: Note) -> npt.NDArray[np.float64]:
        columns, usual = names_in(self.run.config.text_column), self.run.trained.text_columns
        texts = read_texts(path, columns, usual, self.separator, self.encoding)
        return classify(self.run, texts, client, note)


class AnswerPredictor(Predictor):
    """A language model's answers to instructions.

    Args:
        run: the run.
        max_new_tokens: most tokens of an answer.
        separator, encoding: refused, as instructions are read as they are usually written.
    """

    usual_tokens: ClassVar[int] = 64

    def __init__(
        self,
        run: Run,
        max_new_tokens: int | None = None,
        separator: str | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(run, separator, encoding)
        self.max_new_tokens = max_new_tokens or self.usual_tokens

    def table(self, path: Path, client: int | None, note: Note) -> tuple[list[str], list[list[str]]]:
        """See :meth:`Predictor.table`."""
        check_unsaid(path, self.separator, self.encoding)
        answers = answer(self.run, read_instructions(path), client, self.max_new_tokens)
        if told := judged(self.run, path, client):
            note(told)
        return ["answer"], [[text] for text in answers]


def predictor_of(
    run: Run, max_new_tokens: int | None = None, *, separator: str | None = None, encoding: str | None = None
) -> Predictor:
    """What suits the run.

    Args:
        run: the run.
        max_new_tokens: most tokens of an answer, for language models alone.
        separator, encoding: of tables in text files; found if not given.

    Raises:
        ConfigError: ``max_new_tokens`` for a run that is of no language model.
    """
    trained = run.trained
    if trained.task.generative:
        return AnswerPredictor(run, max_new_tokens, separator, encoding)
    if max_new_tokens is not None:
        raise ConfigError(
            f"--max-new-tokens is for language models, and {trained.where} is of the task {trained.task.name}"
        )
    return (TextPredictor if trained.reads_text else SamplePredictor)(run, separator, encoding)
