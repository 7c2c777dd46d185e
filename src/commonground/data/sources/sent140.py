"""Sent140: tweets by their authors, positive or negative (Go, Bhayani, Huang 2009; FedRep's text experiment)."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np

from commonground.data.glove import GLOVE, read_glove, word_numbers
from commonground.data.source import Source
from commonground.errors import DataError
from commonground.keys import numpy_stream

__all__ = ["load_sent140", "sent140_is_there"]

FILE = "training.1600000.processed.noemoticon.csv"
USERS, TWEETS, LENGTH = 183, 50, 25  # Collins et al. 2021, App. A.2; words of a tweet that are read
_TOKEN = re.compile(r"[\w']+|[.,!?;]")


def sent140_is_there(data_dir: Path) -> bool:
    """Whether the tweets and the word vectors lie in a data folder."""
    return (data_dir / "sent140" / FILE).is_file() and (data_dir / GLOVE).is_file()


def load_sent140(
    data_dir: Path, download: bool, *, users: int = USERS, tweets: int = TWEETS, length: int = LENGTH
) -> Source:
    """Tweets of ``users`` authors with at least ``tweets`` tweets each, as numbers of words in the GloVe file.

    A fifth of each author's tweets is the test data. Words are numbered by their line in the word vectors' file, as
    the model ``lstm`` reads it; 0 stands for padding and unknown words.

    Args:
        data_dir: holds ``sent140/training.1600000.processed.noemoticon.csv`` and ``sent140/glove.6B.300d.txt``.
        download: not used; both files have to be put there.
        users, tweets, length: authors drawn (all, if there are fewer), the least number of tweets, words per tweet.

    Raises:
        DataError: a file is missing or damaged, or no author has that many tweets.
    """
    path = data_dir / "sent140" / FILE
    if not path.is_file():
        raise DataError(
            f"sent140 needs the file {FILE} in {path.parent}: put it there yourself, it can be had from "
            "http://help.sentiment140.com/for-students"
        )
    rows: list[tuple[int, str, str]] = []
    try:
        with path.open(encoding="latin-1", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if len(row) != 6 or row[0] not in ("0", "4"):
                    raise DataError(
                        f"line {number} of {path} is not a tweet (polarity 0 or 4, id, date, query, user, text)"
                    )
                rows.append((int(row[0] == "4"), row[4], row[5]))
    except csv.Error as error:
        raise DataError(f"{path} could not be read as a table: {error}") from None
    counts = Counter(user for _, user, _ in rows)
    able = sorted(user for user, count in counts.items() if count >= tweets)
    if not able:
        raise DataError(f"no author in {path} has {tweets} tweets; the most is {max(counts.values(), default=0)}")
    if len(able) > users:
        able = sorted(numpy_stream(0, "sent140-users").choice(able, users, replace=False).tolist())
    words, _ = read_glove(data_dir / GLOVE)
    numbers = word_numbers(words)
    chosen = set(able)
    kept = [row for row in rows if row[1] in chosen]
    x = np.zeros((len(kept), length), dtype=np.float32)  # whole numbers below 2^24 are exact
    for i, (_, _, text) in enumerate(kept):
        tokens = _TOKEN.findall(text.lower())[:length]
        # Padding goes before the words: the network's last state follows the last word.
        x[i, length - len(tokens) :] = [numbers.get(token, 0) for token in tokens]
    y = np.array([label for label, _, _ in kept], dtype=np.int64)
    user = np.array([name for _, name, _ in kept])
    test = np.zeros(len(kept), dtype=bool)
    for number, name in enumerate(able):
        own = np.flatnonzero(user == name)
        test[numpy_stream(0, "sent140-test", number).permutation(own)[: max(1, len(own) // 5)]] = True
    return Source(
        name="sent140",
        x_train=np.ascontiguousarray(x[~test]),
        y_train=y[~test],
        x_test=np.ascontiguousarray(x[test]),
        y_test=y[test],
        classes=2,
        class_names=("negative", "positive"),
        train_columns={"user": user[~test]},
        test_columns={"user": user[test]},
    )
