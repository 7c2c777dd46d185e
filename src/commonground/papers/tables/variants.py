"""One thing changed at a time, to find which one moves a cell away from the printed value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commonground.errors import ConfigError
from commonground.suggest import meant

__all__ = ["PAPER", "VARIANTS", "Variant", "taken", "variant"]


@dataclass(frozen=True)
class Variant:
    """A change of the paper's setting.

    Attributes:
        name: in the command line and in files; empty for the paper's own setting.
        what: the change, in words.
        settings: of every run, or hyperparameters where the algorithm has them.
        by_algorithm: further changes of single algorithms; where these are all there is, the variant exists for those
            algorithms alone.
        data: the data sets it makes sense for; all if empty.
        tuned_only: whether it changes fine-tuning alone.
        words: the change in words of single algorithms, where it is another for each.
    """

    name: str
    what: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_algorithm: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    tuned_only: bool = False
    words: Mapping[str, str] = field(default_factory=dict)

    def said_of(self, algorithm: str) -> str:
        """The change of an algorithm, in words."""
        return self.words.get(algorithm, self.what)

    def changes(self, algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What is changed for an algorithm, without what it does not take.

        Args:
            algorithm: by name.
            settings: of the run without it.
        """
        return taken(algorithm, settings, {**self.settings, **self.by_algorithm.get(algorithm, {})})

    def fits(self, algorithm: str, data: str, settings: Mapping[str, Any]) -> bool:
        """Whether it changes anything for an algorithm on a data set.

        Args:
            algorithm, data: by name.
            settings: of the run without it.
        """
        return (
            bool(self.changes(algorithm, settings) or not self.name)
            and (not self.data or data in self.data)
            and (not self.tuned_only or bool(settings.get("finetune_epochs")))
        )


def taken(algorithm: str, settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Of changes for all methods those that an algorithm takes in runs of these settings.

    Plain steps, for example, decay all weights alike, biases among them.
    """
    from commonground.algorithms import registry
    from commonground.engine.option_checks import not_taken

    left = not_taken(registry[algorithm], settings.get("finetune_epochs") or 0)
    return {name: value for name, value in changes.items() if name not in left}


PAPER = Variant("", "the paper's own setting")

_DECAY = {"weight_decay": 1e-4, "no_decay_bias": True}
_REPEATED = {"partition": "shards:repeats=yes"}
_AUTHORS = {"augment": "flip-crop", **_DECAY, **_REPEATED}
_FLUTE = {"feature_norms": "sum", "feature_penalty": 0.0005, "server_penalty": "mean", "server_lr": 0.5}
_BOTH_FLUTES = {"flute": _FLUTE, "flute-star": _FLUTE}
_CODES: Mapping[str, Mapping[str, Any]] = {"l2gd": {"authors_code": True, "lr": 0.025}, "fedmtl": {"strength": 0.0}}
_CIFAR = ("cifar10", "cifar100")
_LETTERS = ("emnist-letters",)
_CONSECUTIVE = "lognormal:mean=148,fewer=yes,min=50,classes=3,consecutive=yes"

VARIANTS: dict[str, Variant] = {
    one.name: one
    for one in (
        Variant("augment", "training images cropped and flipped at random, as in the authors' code",
                {"augment": "flip-crop"}, data=_CIFAR),
        Variant("weight-decay", "weight decay 1e-4 on weights, not on biases, as in the authors' code (on "
                "both where a method takes plain steps)",
                _DECAY),
        Variant("repeated-classes", "shards dealt as the authors' code does, so that two may be of one class",
                _REPEATED, data=_CIFAR),
        Variant("by-samples", "updates averaged by the clients' numbers of samples, as in the authors' code",
                {"weighting": "samples"}),
        Variant("authors", "crop and flip, weight decay and repeated classes together, and FLUTE's penalties, L2GD's "
                "and Fed-MTL's constants as in the authors' code", _AUTHORS, by_algorithm={**_BOTH_FLUTES, **_CODES},
                data=_CIFAR),
        Variant("authors-data", "crop and flip and repeated classes together, without weight decay, as the authors' "
                "code trains Local Only", {"augment": "flip-crop", **_REPEATED}, data=_CIFAR),
        Variant("authors-half", "crop and flip, weight decay and repeated classes together, and 500 of a client's "
                "1,000 images, as FLUTE's code trains at 50 clients", {**_AUTHORS, "train_samples": 500},
                by_algorithm=_BOTH_FLUTES, data=_CIFAR),
        Variant("authors-constants", "L2GD's and Fed-MTL's constants as in the authors' code",
                by_algorithm=_CODES, data=("cifar10",),
                words={
                    "l2gd": "the local rate α/(n(1 − p)) = 0.025 and the factor αλ/(n(1 − p)), as in the authors' code",
                    "fedmtl": "the regulariser times 1e-7, which is none, as in the authors' code",
                }),
        Variant("every-round", "tested in every round, before and after local training (the same run)",
                {"eval_every": 1, "metrics": "full"}),
        Variant("lr-0.003", "a third of the learning rate", {"lr": 0.003}),
        Variant("lr-0.03", "three times the learning rate", {"lr": 0.03}),
        Variant("ft-5", "5 epochs of fine-tuning instead of 10", {"finetune_epochs": 5}, tuned_only=True),
        Variant("ft-20", "20 epochs of fine-tuning instead of 10", {"finetune_epochs": 20}, tuned_only=True),
        Variant("body-5", "5 epochs on the body, as in the authors' script for (100, 5)",
                by_algorithm={"fedrep": {"body_epochs": 5}}, data=_CIFAR),
        Variant("no-head-bias", "a last layer without biases", {"model_options": {"head_bias": False}}, data=_CIFAR),
        Variant("own-statistics", "images normalised by CIFAR-10's own statistics, not by ImageNet's",
                {"normalize": "cifar10"}, data=("cifar10",)),
        Variant("imagenet-statistics", "images normalised by ImageNet's statistics", {"normalize": "imagenet"},
                data=("cifar100",)),
        Variant("dropout-after-1", "dropout behind the first hidden layer", {"model_options": {"dropout_after": 1}},
                data=("cifar100",)),
        Variant("no-momentum", "plain SGD", {"momentum": 0.0}),
        Variant("flute-authors", "FLUTE's penalties as in its authors' code: a sum over feature norms, a mean over "
                "clients", by_algorithm=_BOTH_FLUTES),
        Variant("softmax", "probabilities leave the network and the cross-entropy takes their softmax once more, as in "
                "the authors' code", {"model_options": {"softmax": True}}, data=_LETTERS),
        Variant("consecutive-classes", "client i holds letters i, i + 1 and i + 2 in equal parts, as in the authors' "
                "script", {"partition": _CONSECUTIVE}, data=_LETTERS),
        Variant("authors-letters", "the softmax, consecutive classes and weight decay together",
                {"model_options": {"softmax": True}, "partition": _CONSECUTIVE, **_DECAY}, data=_LETTERS),
        Variant("bf16", "products computed in bfloat16, not in float32 (weights, averages and losses stay float32)",
                {"precision": "bf16"}),
        Variant("half-the-images", "500 of a client's 1,000 images, as FLUTE's code trains on at 50 clients",
                {"train_samples": 500}, data=_CIFAR),
    )
}  # fmt: skip
"""By name. BatchNorm's statistics are no switch here: the papers' networks for these tables have none."""


def variant(name: str) -> Variant:
    """The variant of this name; an empty name is the paper's own setting.

    Raises:
        ConfigError: there is none.
    """
    if not name or name == "paper":
        return PAPER
    if name not in VARIANTS:
        raise ConfigError(f"unknown variant '{name}'{meant(name, VARIANTS)}; known are {', '.join(VARIANTS)}")
    return VARIANTS[name]
