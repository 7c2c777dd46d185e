"""Sources of samples that have a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commonground.data.source import Source
from commonground.data.sources.cifar import cifar_is_there, load_cifar10, load_cifar100
from commonground.data.sources.digits import load_digits
from commonground.data.sources.glue import TASKS, glue_is_there, glue_reader
from commonground.data.sources.idx import emnist_letters_are_there, load_emnist_letters, load_mnist, mnist_is_there
from commonground.data.sources.sent140 import load_sent140, sent140_is_there
from commonground.data.text.samples import TextData

__all__ = ["NAMED", "SourceInfo", "available_sources"]


@dataclass(frozen=True)
class SourceInfo:
    """A source in a list.

    Attributes:
        name: as given to :func:`~commonground.data.sources.load_source`.
        description: one line.
        origin: where the files come from.
        model: the model used when the user names none; empty for texts, which have none.
        load: reads it from a data folder; the flag says whether downloads are allowed. Texts are tokenised afterwards.
        partition: the partition used when the user names none.
        text: whether it holds texts, which need a tokenizer.
        there: whether its files lie in a data folder (or their archive does), as far as their names tell.
    """

    name: str
    description: str
    origin: str
    model: str
    load: Callable[[Path, bool], Source | TextData]
    partition: str = "iid"
    text: bool = False
    there: Callable[[Path], bool] = lambda data_dir: True


NAMED = {
    info.name: info
    for info in (
        SourceInfo(
            "digits",
            "1,797 handwritten digits, 8x8 grey, 10 classes; no download",
            "scikit-learn (UCI, Alpaydin and Kaynak 1998)",
            "mlp",
            lambda data_dir, download: load_digits(),
        ),
        SourceInfo(
            "mnist",
            "70,000 handwritten digits, 28x28 grey, 10 classes",
            "https://ossci-datasets.s3.amazonaws.com/mnist/ (LeCun, Cortes and Burges 1998)",
            "cnn",
            load_mnist,
            there=mnist_is_there,
        ),
        SourceInfo(
            "cifar10",
            "60,000 pictures, 32x32 colour, 10 classes",
            "https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
            "cnn",
            load_cifar10,
            there=partial(cifar_is_there, "cifar10"),
        ),
        SourceInfo(
            "cifar100",
            "60,000 pictures, 32x32 colour, 100 classes",
            "https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
            "cnn",
            load_cifar100,
            there=partial(cifar_is_there, "cifar100"),
        ),
        SourceInfo(
            "emnist-letters",
            "handwritten letters A to J, 28x28 grey, 10 classes",
            "https://www.nist.gov/itl/products-and-services/emnist-dataset (Cohen et al. 2017)",
            "mlp",
            load_emnist_letters,
            there=emnist_letters_are_there,
        ),
        SourceInfo(
            "sent140",
            "tweets of 183 authors, positive or negative; files have to be put in the data folder",
            "http://help.sentiment140.com (Go, Bhayani and Huang 2009) and GloVe vectors",
            "lstm",
            load_sent140,
            partition="column:user",
            there=sent140_is_there,
        ),
        *(
            SourceInfo(
                name,
                f"{task.title}; texts, for a model hf:NAME",
                "https://gluebenchmark.com (Wang et al. 2019)",
                "",
                glue_reader(name),
                text=True,
                there=partial(glue_is_there, name),
            )
            for name, task in TASKS.items()
        ),
    )
}


def available_sources() -> tuple[SourceInfo, ...]:
    """Every source that has a name, in the order to list them. Tables and instructions are given by their path."""
    return tuple(NAMED.values())
