"""The flags every command that trains has, made from the fields of RunConfig."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from commonground.catalogue import check_file, check_names
from commonground.cli.completion import complete_data, complete_model, complete_setting
from commonground.cli.parameters import NameChoice
from commonground.device_names import check_device
from commonground.errors import ConfigError
from commonground.literals import assigned
from commonground.tracking import TRACKERS
from commonground.user_code import check_code

__all__ = [
    "check_early",
    "run_options",
    "run_values",
    "settings_options",
]

_FLAGS = {"target": ("--target", "--label")}  # of settings that people know by two names
_COMPLETED = {"data": complete_data, "model": complete_model}
_SET_ELSEWHERE = {"algorithm", "options", "model_options"}


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one flag per field of RunConfig, so that flags, files and Python use the same names."""
    from commonground.config import RunConfig

    command = settings_options(*(name for name in RunConfig.model_fields if name not in _SET_ELSEWHERE))(command)
    extra = [
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE",
                     shell_complete=complete_setting,
                     help="a hyperparameter of the algorithm, or model.KEY=VALUE for one of the model"),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="settings from a TOML file"),
        click.option("--data-dir", help="folder of the data files  [default: $COMMONGROUND_DATA or a cache folder]"),
        click.option("--track", multiple=True, type=NameChoice(TRACKERS), help="where figures go, too; repeatable"),
        click.option("--quiet", is_flag=True, help="print nothing but errors"),
    ]  # fmt: skip
    for option in reversed(extra):
        command = option(command)
    return command


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of some fields of RunConfig."""
    from commonground.config import RunConfig

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            command = _option(name, RunConfig.model_fields[name])(command)
        return command

    return decorate


def _option(name: str, field: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    choices = _choices(field.annotation)
    kind: Any = NameChoice(choices) if choices else _scalar(field.annotation)
    default = "" if field.default is None else f"  [default: {field.default}]"
    flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    if field.annotation is bool:
        return click.option(*flags, name, is_flag=True, default=None, help=field.description)
    told = (field.description or "") + default
    return click.option(*flags, name, type=kind, help=told, shell_complete=_COMPLETED.get(name))


def _scalar(annotation: Any) -> type:
    kinds: list[type] = [a for a in (typing.get_args(annotation) or (annotation,)) if a in (int, float, str, bool)]
    return kinds[0]


def _choices(annotation: Any) -> list[str]:
    kinds = [annotation, *typing.get_args(annotation)]  # Literal[…], or Literal[…] | None
    return [choice for kind in kinds if typing.get_origin(kind) is typing.Literal for choice in typing.get_args(kind)]


def check_early(values: dict[str, Any]) -> None:
    """Refuse settings of a run on this machine that are wrong whatever the data turn out to be; without PyTorch.

    Raises:
        CommonGroundError: names the first such.
    """
    check_names(values)
    check_file(str(values.get("data", "")))
    check_device(str(values.get("device", "auto")))
    if (source := values.get("init_from")) is not None and not Path(str(source)).expanduser().exists():
        raise ConfigError(f"--init-from '{source}' does not exist")
    if (loss := values.get("loss")) is not None:
        check_code(str(loss), "loss", "loss=f")
    for metric in str(values.get("metric") or "").split(","):
        if metric.strip():
            check_code(metric.strip(), "metric", "metrics={'name': f}")


def run_values(flags: dict[str, Any], assignments: tuple[str, ...], config_file: Path | None) -> dict[str, Any]:
    """Settings from a file, then flags, then ``--set``.

    Raises:
        CommonGroundError: a setting is no such.
    """
    from commonground.config import RunConfig

    values = RunConfig.read(config_file) if config_file is not None else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    for key, value in assigned(assignments).items():
        place = "options"
        if key.startswith("model."):
            place, key = "model_options", key.removeprefix("model.")
        if not isinstance(values.get(place, {}), dict):
            raise ConfigError(f"'{place}' in the configuration file must be a table of settings, not {values[place]!r}")
        values[place] = {**values.get(place, {}), key: value}
    return values
