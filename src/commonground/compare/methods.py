"""A method of a comparison: an algorithm with settings of its own, written ``NAME[+ft][:KEY=VALUE,…]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from commonground.algorithms import Algorithm, make_algorithm, registry, yardsticks
from commonground.compare.adapting import OF_MODEL, check_spelling, is_adapting
from commonground.config import RunConfig
from commonground.engine.option_checks import unused
from commonground.errors import ConfigError
from commonground.literals import literal
from commonground.quoting import folder_name
from commonground.suggest import meant

__all__ = ["COMMON", "FINETUNE_EPOCHS", "FINE_TUNING", "Method", "as_text"]

FINETUNE_EPOCHS = 10
"""What ``+ft`` stands for (Collins et al. 2021, §5.2)."""

FINE_TUNING = ("finetune_epochs", "finetune")
"""Of the settings of all methods those for the ones that would leave clients with a global model."""

SYNTAX = "NAME[+ft][:KEY=VALUE,KEY=VALUE…], for example fedavg, fedavg+ft, fedavg:lr=0.03"

_METHOD = re.compile(r"(?P<name>[^=,]+?)(?P<ft>\+ft)?(?::(?P<settings>[A-Za-z_][\w.-]*=.*))?", re.DOTALL)
_NEXT_SETTING = re.compile(r",(?=\s*[A-Za-z_][\w.-]*=)")  # a value may hold commas: lr_schedule=halve:0.5,0.75

# Equal for all methods, or they would not be compared on the same data, start, client samples and tests.
COMMON = {
    "algorithm", "options", "data", "clients", "classes_per_client", "partition", "feature_noise", "normalize",
    "train_samples", "test_samples", "model", "model_options", "init_from", "participation", "dtype", "seed",
    "eval_every", "eval_clients", "final_eval_clients", "validation_fraction", "metric", "rank_by", "worst_min_rows",
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """One competitor.

    Attributes:
        name: of the algorithm, or ``file.py:Class``.
        settings: its own settings: hyperparameters of the algorithm, fields of
            :class:`~commonground.config.RunConfig`, or ``model.rank`` and other options by which a pretrained model is
            adapted; a name that is both of the first means the hyperparameter.
        given: the algorithm itself, when it was not given by name.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    given: Algorithm | None = None

    @classmethod
    def parse(cls, text: str | Algorithm) -> Method:
        """Read a method as it is written on the command line.

        Raises:
            ConfigError: it does not follow ``NAME[+ft][:KEY=VALUE,…]``, the algorithm is unknown, or it has no such
                setting.

        >>> Method.parse("fedavg+ft:lr=0.03")
        Method(name='fedavg', settings={'finetune_epochs': 10, 'lr': 0.03}, given=None)
        """
        if isinstance(text, Algorithm):
            own = {f.name: getattr(text, f.name) for f in fields(text) if getattr(text, f.name) != f.default}
            return cls(text.name, own, text)
        if not isinstance(text, str):
            raise ConfigError(f"a method must be a name or an Algorithm object, such as FedRep(), not {text!r}")
        match = _METHOD.fullmatch(text.strip())
        alone, colon, _ = ("", "", "") if match is None else match["name"].partition(":")
        if (
            match is None
            or match["name"].endswith(":")
            or (colon and alone.removesuffix("+ft") in registry | yardsticks)
        ):
            raise ConfigError(f"the method '{text}' is not of the form {SYNTAX}")
        settings: dict[str, Any] = {"finetune_epochs": FINETUNE_EPOCHS} if match["ft"] else {}
        for part in _NEXT_SETTING.split(match["settings"] or ""):
            key, _, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if key in settings:
                raise ConfigError(f"the method '{text}' sets '{key}' twice")
            if key:
                settings[key] = literal(value.strip())
        method = cls(match["name"], settings)
        for key in settings:
            method.check_key(key)
        return method

    @property
    def label(self) -> str:
        """The method as it can be written on the command line."""
        settings = dict(self.settings)
        tuned = settings.get("finetune_epochs") == FINETUNE_EPOCHS and "finetune_epochs" not in self._known()
        if tuned:
            del settings["finetune_epochs"]
        text = as_text(settings)
        return f"{self.name}{'+ft' if tuned else ''}{':' if text else ''}{text}"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.label)

    @property
    def title(self) -> str:
        """The name in tables."""
        text = self.label
        own = text.removeprefix(self.name).removeprefix("+ft").removeprefix(":")
        title = self.make().title + ("+FT" if "+ft" in text.removeprefix(self.name)[:3] else "")
        return f"{title} ({own.replace(',', ', ')})" if own else title

    @property
    def _algorithm(self) -> type[Algorithm]:
        return type(self.given or make_algorithm(self.name, {}))

    def _known(self) -> dict[str, Any]:
        return self._algorithm.options()

    @property
    def known(self) -> list[str]:
        """The settings that mean something for this method and may differ between methods."""
        return [*self._known(), *(key for key in RunConfig.model_fields if key not in COMMON)]

    def has(self, key: str) -> bool:
        """Whether this method knows a setting."""
        return key in self.known or is_adapting(key)

    def uses(self, chosen: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
        """Of settings from a grid those that say something to this method.

        Args:
            chosen: the settings.
            common: of all methods.
        """
        if not self._tunes({**common, **chosen, **self.settings}) and "finetune_epochs" not in self._known():
            chosen = {key: value for key, value in chosen.items() if key != "finetune_epochs"}
        passed = self.passes_over(common, {**chosen, **self.settings}) - self._known().keys()
        passed -= {"finetune_epochs"}  # of which 0 is a value as others are
        return {key: value for key, value in chosen.items() if key not in passed}

    def check_key(self, key: str) -> None:
        """Raise a ConfigError unless the setting may differ between methods and this one has it."""
        if self.has(key):
            return
        if key in COMMON or key.startswith(OF_MODEL):
            check_spelling(key)
            raise ConfigError(
                f"'{key}' of '{self.name}' must be equal for all methods of a comparison; give it once, outside of "
                "the methods"
            )
        known = ", ".join([*self._known(), "lr", "local_epochs", "batch_size"])
        near = meant(key, self.known)
        raise ConfigError(
            f"the method '{self.name}' has no setting '{key}'{near}; it has {known} and others of the run"
        )

    def passes_over(self, common: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> set[str]:
        """Which settings of all methods say nothing to this one, so that it is run without them.

        Args:
            common: the settings.
            own: of this method; by default those that it was named with.
        """
        own = self.settings if own is None else own
        both = {**common, **own}
        tuned = both.get("finetune_epochs") if "finetune_epochs" in own or self._tunes(both) else 0
        found = {*unused(self._algorithm, tuned or 0), *(() if tuned else FINE_TUNING)}
        return found | ({"momentum"} if both.get("optimizer") in ("adam", "adamw") else set())

    def _tunes(self, settings: Mapping[str, Any]) -> bool:
        """Whether clients would be left with the one global model, which needs everybody's statistics of BatchNorm
        layers; Ditto's have a model of their own beside it, which fine-tuning of the global one would replace.
        """
        algorithm = self.make()
        return algorithm.has_global_model and not algorithm.has_personal_model and settings.get("batch_norm") != "local"

    def make(self, options: Mapping[str, Any] | None = None) -> Algorithm:
        """The algorithm with these hyperparameters (by default its own)."""
        if options is None:
            options = {key: value for key, value in self.settings.items() if key in self._known()}
        if self.given is not None:
            return type(self.given)(**options)
        return make_algorithm(self.name, options)

    def config(self, common: Mapping[str, Any], chosen: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of one run.

        Args:
            common: settings of all methods; hyperparameters in its ``options`` go to the methods that have them, other
                settings to those that use them, ``finetune_epochs`` to those that leave clients with a global model.
            chosen: settings from a grid.

        Raises:
            ConfigError: a value is out of range, in one sentence that names it.
        """
        known = self._known()
        own = {**(chosen or {}), **self.settings}
        passed = self.passes_over(common, own)
        values = {key: value for key, value in common.items() if key not in passed}
        values["algorithm"] = self.name
        options = {key: value for key, value in common.get("options", {}).items() if key in known}
        for key, value in own.items():
            if key in known:
                options[key] = value
            elif is_adapting(key):
                values["model_options"] = {**values.get("model_options", {}), key.removeprefix(OF_MODEL): value}
            else:
                values[key] = value
        config = RunConfig.make(values | {"options": options})
        self.make(options)
        return config


def as_text(settings: Mapping[str, Any], between: str = ",") -> str:
    """Settings as ``KEY=VALUE,KEY=VALUE``."""
    return between.join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    )


def shown(settings: Mapping[str, Any]) -> str:
    """A grid's settings for people; a candidate without any has what is usual."""
    return as_text(settings, ", ") or "the usual settings"
