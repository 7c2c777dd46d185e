"""Sent140 and its network, on a few lines of our own in the files' layout."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from commonground import load_run, train
from commonground.data import load_data
from commonground.data.glove import GLOVE, read_glove
from commonground.data.sources.sent140 import FILE, load_sent140
from commonground.errors import DataError
from commonground.models import build_model

WORDS = ("good", "bad", "day", "!", "i'm")


def write_files(folder: Path, tweets: dict[str, int] | None = None) -> Path:
    place = folder / "sent140"
    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (place / GLOVE.name).open("w", encoding="utf-8") as file:
        for word in WORDS:
            file.write(word + " " + " ".join(f"{v:.4f}" for v in rng.normal(size=300)) + "\n")
    with (place / FILE).open("w", encoding="latin-1", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        for user, count in (tweets or {"ann": 60, "bob": 50, "cat": 49}).items():
            for i in range(count):
                good = (i + len(user)) % 2 == 0
                text = f"{'Good' if good else 'BAD'} day{'!' * (i % 3)} i'm {user}, café"
                writer.writerow(["4" if good else "0", str(i), "Mon", "NO_QUERY", user, text])
    return folder


def test_authors_with_enough_tweets_are_clients(tmp_path: Path) -> None:
    data = load_data("sent140", data_dir=write_files(tmp_path))
    assert data.clients == 2
    assert [data.client_name(c) for c in range(2)] == ["ann", "bob"]
    assert data.train_sizes.tolist() == [48, 40]
    assert data.test_sizes.tolist() == [12, 10]
    # "good"/"bad" = lines 1 and 2, "day" = 3, "!" = 4, "i'm" = 5; a name, "," and "café" are unknown
    rows = data.x_train[data.train_indices(0)].astype(int)
    assert rows[0].tolist()[-6:] in ([w, 3, 5, 0, 0, 0] for w in (1, 2))
    labels = data.y_train[data.train_indices(0)]
    assert np.array_equal(labels == 1, (rows == 1).any(1))
    assert np.array_equal(labels == 0, (rows == 2).any(1))


def test_more_authors_than_asked_for_are_drawn(tmp_path: Path) -> None:
    source = load_sent140(write_files(tmp_path, dict.fromkeys("abcdef", 6)), False, users=4, tweets=5)
    assert len(set(source.train_columns["user"].tolist())) == 4


def test_the_lstm_reads_the_words_of_a_tweet_in_order(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    embedding = str(folder / GLOVE)
    model = build_model("lstm", (4,), 2, options={"embedding": embedding, "hidden": 8}).eval()
    tweets = torch.tensor([[1.0, 3, 4, 0], [2.0, 3, 4, 0], [3.0, 1, 4, 0]])
    together = model(tweets)
    # A tweet's logits do not depend on the tweets beside it, but do on the order of its words.
    for i, tweet in enumerate(tweets):
        assert torch.allclose(model(tweet.unsqueeze(0))[0], together[i], atol=1e-6)
    assert not torch.allclose(together[0], together[2])
    # By hand: the LSTM over [words, 300], last state, decoder, head.
    _, vectors = read_glove(Path(embedding))
    words = torch.from_numpy(np.vstack([np.zeros((1, 300), np.float32), vectors]))[tweets[0].long()]
    _, (state, _) = model.get_submodule("lstm")(words.unsqueeze(0))
    head, decoder = model.get_submodule("head"), model.get_submodule("decoder")
    assert torch.allclose(head(torch.relu(decoder(state[-1])))[0], together[0], atol=1e-6)
    assert "table" not in model.state_dict()


def test_fedrep_learns_the_tweets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONGROUND_DATA", str(write_files(tmp_path)))
    runs = [train("fedrep", "sent140", rounds=8, batch_size=4, lr=0.1, engine=e) for e in ("serial", "processes")]
    assert runs[0].summary["model"] == "lstm"
    assert runs[0].personal_accuracy["mean"] > 0.9
    assert runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]


def test_the_vectors_are_read_where_the_tweets_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONGROUND_DATA", str(tmp_path / "elsewhere"))
    folder = write_files(tmp_path / "data")
    train("fedrep", "sent140", rounds=1, data_dir=str(folder), out=tmp_path / "run")
    rows = load_data("sent140", data_dir=folder).x_test[:3]
    assert load_run(tmp_path / "run").predict(rows, 0).shape == (3, 2)  # who loads it need not say it again


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=FILE):
        load_data("sent140", data_dir=tmp_path)
    folder = write_files(tmp_path / "a")
    glove = folder / GLOVE
    glove.write_text(glove.read_text() + "short 1 2\n")
    with pytest.raises(DataError, match="line 6"):
        load_data("sent140", data_dir=folder)
    glove.unlink()
    with pytest.raises(DataError, match=GLOVE.name):
        load_data("sent140", data_dir=folder)
    folder = write_files(tmp_path / "b", {"ann": 10})
    with pytest.raises(DataError, match="the most is 10"):
        load_data("sent140", data_dir=folder)
    (folder / "sent140" / FILE).write_text("not,a,tweet\n")
    with pytest.raises(DataError, match="line 1"):
        load_data("sent140", data_dir=folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("word 1 2\ncaf\xe9 1 2\n".encode("latin-1"), "is not UTF-8 text, as GloVe's files are"),
        (b"word 1 2\nother 1 nan\n", "line 2 of .* has 1 finite numbers, not 2"),
        (b"word\n", "line 1 of .* has 0 finite numbers, not 1"),
    ],
)
def test_vectors_that_are_none_are_told(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_glove(path)
