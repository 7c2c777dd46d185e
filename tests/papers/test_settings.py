"""Settings of experiments: other names, one value for several, and what is said where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field

from commonground.errors import ConfigError
from commonground.papers.fedrep.fig3 import Fig3Settings
from commonground.papers.flute.fig4 import PenaltySettings
from commonground.papers.flute.linear import ComparisonSettings
from commonground.papers.flute.theorem5_5 import TheoremSettings
from commonground.papers.local_steps.features import FeatureSettings
from commonground.papers.request import Request, Settings
from commonground.papers.rolora.step_size import StepSize
from commonground.papers.rolora.theory import RoLoRATheory

Sizes = Annotated[tuple[int, ...], Field(min_length=1)]


class Example(Settings):
    """Every kind of field."""

    also: ClassVar[Mapping[str, str]] = {"N": "sizes"}

    sizes: Sizes = (1, 2)
    rates: tuple[float, ...] | None = None
    names: tuple[str, ...] = ("a",)
    window: tuple[int, int] = (0, 1)
    rounds: int = 5


def chosen(settings: Settings, **overrides: Any) -> Settings:
    return Request(Path(), overrides=overrides).choose(settings, settings)


def test_one_value_will_do_where_several_are_taken() -> None:
    assert chosen(Example(), sizes=3, rates=0.5, names="b") == Example(sizes=(3,), rates=(0.5,), names=("b",))
    assert chosen(Example(), sizes=[3, 4], rates=None) == Example(sizes=(3, 4))
    assert chosen(Example(), N=7) == Example(sizes=(7,))
    wrong: list[dict[str, Any]] = [{"window": 3}, {"sizes": []}, {"sizes": "x"}, {"rounds": [5, 6]}]
    for given in wrong:
        with pytest.raises(ConfigError):
            chosen(Example(), **given)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Fig3Settings(), {"d": "d", "k": "k", "n": "n", "clients": "n", "N": "m", "dimension": "d"}),
        (ComparisonSettings(), {"d": "d", "k": "ks", "n": "clients", "M": "clients", "N": "samples", "m": "samples"}),
        (PenaltySettings(), {"d": "d", "k": "k", "n": "clients", "N": "samples"}),
        (TheoremSettings(), {"d": "d", "k": "k", "n": "clients", "N": "samples"}),
        (RoLoRATheory(), {"d": "dimension", "n": "clients", "N": "clients", "m": "samples"}),
        (StepSize(), {"d": "dimension", "n": "clients", "m": "samples"}),
        (FeatureSettings(), {"d": "d", "k": "K", "n": "n", "clients": "N", "samples": "n"}),
    ],
)
def test_the_letters_of_every_paper_are_understood(settings: Settings, names: dict[str, str]) -> None:
    for name, field in names.items():
        changed = chosen(settings, **{name: 4}).model_dump()
        assert changed.pop(field) in (4, (4,))
        assert changed == {key: value for key, value in settings.model_dump().items() if key != field}


def test_a_fields_own_name_goes_before_another_ones_other_name() -> None:
    assert Fig3Settings.also["samples"] == "m"
    assert chosen(Fig3Settings(), samples="fresh") == Fig3Settings(samples="fresh")
    assert "eta" not in StepSize.known_as()  # it has no step
    with pytest.raises(ConfigError, match="unknown setting 'eta'"):
        chosen(StepSize(), eta=0.1)


def test_what_does_not_fit_is_said_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="'samples' and 'N' are one setting, samples; give it once"):
        chosen(ComparisonSettings(), samples=4, N=5)
    with pytest.raises(ConfigError, match=r"unknown setting 'nothing'; known are sizes, .*, rounds, N$"):
        chosen(Example(), nothing=1)
