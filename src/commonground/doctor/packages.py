"""Which packages are installed, beside what this version asks for, read off its own metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from commonground.extras import pip_install

__all__ = ["FEATURES", "Extra", "Package", "extras", "installed", "needed"]

FEATURES = {
    "llm": "models hf:…, LoRA adapters, tokenizers",
    "serve": "commonground serve",
    "datasets": "--data hf:NAME, folders of save_to_disk",
    "images": "--data FOLDER of pictures",
    "onnx": "export --format onnx",
    "tensorboard": "--track tensorboard",
    "mlflow": "--track mlflow",
    "wandb": "--track wandb",
    "network": "commonground deploy",
    "ray": "--engine ray",
    "privacy": "--dp",
}
"""Extras that a user may want, each with what needs it."""


@dataclass(frozen=True)
class Package:
    """A package that is asked for.

    Attributes:
        name: as it is installed.
        wanted: which versions; empty for any.
        installed: the version that is there; None if there is none.
    """

    name: str
    wanted: str
    installed: str | None

    @property
    def fits(self) -> bool:
        """Whether it is there, in a version that is asked for."""
        return self.installed is not None and Requirement(f"x{self.wanted}").specifier.contains(
            self.installed, prereleases=True
        )


@dataclass(frozen=True)
class Extra:
    """Packages of which something optional is made.

    Attributes:
        name: of the extra.
        feature: what needs it.
        packages: which it is made of.
    """

    name: str
    feature: str
    packages: tuple[Package, ...]

    @property
    def fits(self) -> bool:
        """Whether all of them are there; not if the metadata are of an installation that knew none of them."""
        return bool(self.packages) and all(package.fits for package in self.packages)

    @property
    def install(self) -> str:
        """What to type to have them."""
        return pip_install(self.name)


def needed(name: str = "commonground") -> tuple[Package, ...]:
    """What every use needs."""
    return tuple(_packages(_requirements(name), None))


def extras(name: str = "commonground") -> tuple[Extra, ...]:
    """The extras of :data:`FEATURES`."""
    asked = _requirements(name)
    return tuple(Extra(extra, feature, tuple(_packages(asked, extra))) for extra, feature in FEATURES.items())


def _requirements(name: str) -> list[Requirement]:
    try:
        return list(map(Requirement, requires(name) or ()))
    except PackageNotFoundError:  # a source tree that is not installed
        return []


def _packages(asked: Iterable[Requirement], extra: str | None) -> Iterable[Package]:
    for one in asked:
        always = one.marker is None or one.marker.evaluate({"extra": ""})
        here = always if one.marker is None else one.marker.evaluate({"extra": extra or ""})
        if here and always is (extra is None):
            yield Package(one.name, str(one.specifier), installed(one.name))


def installed(name: str) -> str | None:
    """The version of a package that is there; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
