"""``commonground compare``: several methods on the same splits, starts and client samples."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from commonground.catalogue import check_method
from commonground.cli.completion import complete_algorithm, complete_setting
from commonground.cli.help import SectionedCommand
from commonground.cli.options import check_early, run_options, run_values
from commonground.errors import ConfigError
from commonground.existing import check_folder
from commonground.quoting import folder_name

# The modules that load PyTorch are imported where they are used: `--help` and mistyped commands answer at once.

__all__ = ["compare"]

# What may change when a comparison in the default folder is continued.
_NOT_ITS_NAME = {
    "seeds",
    "reference",
    "to_accuracy",
    "to_metric",
    "out",
    "resume",
    "quiet",
    "workers",
    "ray_address",
    "data_dir",
    "track",
    "allow_other_numerics",
    "dry_run",
    "as_json",
}


@click.command(
    cls=SectionedCommand,
    short_help="Compare methods on the same data, starts and seeds.",
    epilog="Example: commonground compare fedrep fedavg+ft fedper --data digits --clients 50 --classes-per-client 5 "
    "--seeds 5",
)
@click.argument("methods", nargs=-1, metavar="METHOD…", shell_complete=complete_algorithm)
@click.option("--seeds", default=3, show_default=True, type=int, help="number of seeds, from --seed upwards")
@click.option("--reference", metavar="METHOD", help="what the others are compared with  [default: the first method]")
@click.option(
    "--to-accuracy",
    type=float,
    metavar="ACCURACY",
    help="report rounds, bytes and seconds to it, such as 0.8",
)
@click.option(
    "--to-metric",
    type=float,
    metavar="VALUE",
    help="the same of any task's metric, such as an RMSE of 0.3 (a number as --target is understood so, too)",
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=V1,V2…",
    help="choose a setting on validation data; repeatable",
    shell_complete=complete_setting,
)
@click.option(
    "--validation", default=0.2, show_default=True, type=float, help="share of training samples that judges a grid"
)
@click.option("--local-only/--no-local-only", default=True, show_default=True, help="add Local Only, the yardstick")
@run_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="folder for all files  [default: one in runs/ named by the command]"
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="say what would be done and what it takes (some rounds of each method are timed); nothing is written",
)
@click.option("--json", "as_json", is_flag=True, help="with --dry-run: print JSON")
@click.option("--resume", is_flag=True, help="continue the comparison in --out (the same command does so, too)")
@click.option(
    "--allow-other-numerics",
    is_flag=True,
    help="continue runs with other threads, precision or device than before, and so with other last bits",
)
@click.pass_context
def compare(
    context: click.Context,
    /,
    methods: tuple[str, ...],
    seeds: int,
    reference: str | None,
    to_accuracy: float | None,
    to_metric: float | None,
    grids: tuple[str, ...],
    validation: float,
    local_only: bool,
    assignments: tuple[str, ...],
    config_file: Path | None,
    data_dir: str | None,
    track: tuple[str, ...],
    quiet: bool,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
    resume: bool,
    allow_other_numerics: bool,
    **flags: Any,
) -> None:
    """Compare METHODs on the same data splits, initial weights and client samples, and test their differences.

    A METHOD is NAME[+ft][:KEY=VALUE,KEY=VALUE…]. NAME is an algorithm (`commonground list algorithms`); +ft fine-tunes
    every client's head for 10 epochs after the last round; KEY is a hyperparameter of the algorithm or a setting of
    training (or model.rank and the like, by which a model hf:… is adapted), for this method alone. Options hold for
    all methods (--set for those that have the hyperparameter, --finetune-epochs for those that leave clients with a
    global model).

    \b
      commonground compare fedrep fedavg fedavg+ft --data digits --clients 50 --classes-per-client 5
      commonground compare fedrep fedrep:head_epochs=5 fedavg:lr=0.03,momentum=0 --seeds 5 --to-accuracy 0.8
      commonground compare fedrep fedavg --grid lr=0.01,0.03,0.1 --grid head_epochs=5,10

    Local Only is added unless --no-local-only is given; its counterpart is the METHOD pooled, one model trained on all
    clients' rows together, which is not federated. A --grid tunes every method that has the setting, for every
    seed, on a part of the clients' training data. The folder gets comparison.json, table.csv, table.tex,
    table.md, report.html and METHOD/seed-K/, each a run's folder; runs that are there already are taken or continued
    if their settings and data are the same.
    """  # noqa: D301 (\b is click's)
    from commonground.config import RunConfig

    # No name has a comma: "fedrep,fedavg" is two, as --methods of `reproduce` has them.
    methods = tuple(
        name for method in methods for name in ([method] if ":" in method else filter(None, method.split(",")))
    )
    for method in methods:  # here and below before PyTorch is loaded
        name = method.partition(":")[0].strip().removesuffix("+ft")
        if name and not name.endswith(".py"):
            check_method(name)
    unnamed = _NOT_ITS_NAME
    if to_accuracy is None and to_metric is None and _is_number(flags.get("target")):
        to_metric, unnamed = float(flags.pop("target")), {*unnamed, "target"}
    values = run_values(flags, assignments, config_file)
    check_early(values)
    if as_json and not dry_run:
        raise ConfigError("--json prints what --dry-run finds; add --dry-run")
    if not methods and "algorithm" in values:
        methods = (values["algorithm"],)
    values.pop("algorithm", None)
    RunConfig.make({name: value for name, value in values.items() if name != "options"})
    if out is not None:
        check_folder(out)
    if resume and (out is None or not out.is_dir()):
        where = f"'{out}' is no folder" if out is not None else "no --out was given"
        raise ConfigError(f"--resume needs the folder of the comparison to continue, but {where}")
    if out is None:
        text = repr((_given(context, unnamed), config_file and values))
        key = hashlib.sha256(text.encode()).hexdigest()[:8]
        out = Path("runs") / folder_name(f"compare-{Path(values.get('data', 'digits')).stem}-{key}")
    from commonground.compare import compare as run_comparison
    from commonground.compare.grid import parse_grid
    from commonground.compare.progress import ComparisonProgress
    from commonground.compare.tables import cost_table, headline_table, metric_table, target_table, tuning_table
    from commonground.terminal import standard_output

    asked: dict[str, Any] = {
        "seeds": seeds,
        "out": out,
        "reference": reference,
        "to_accuracy": to_accuracy,
        "to_metric": to_metric,
        "grid": parse_grid(grids),
        "local_only": local_only,
        "validation": validation,
        "observer": ComparisonProgress(quiet),
        "data_dir": data_dir,
        **values,
    }
    if dry_run:
        _show_plan(methods, asked, as_json)
        return
    comparison = run_comparison(
        methods,
        track=track,
        allow_other_numerics=allow_other_numerics,
        command=shlex.join(["commonground", "compare", *_given(context, set())]),
        **asked,
    )
    if not quiet:
        console = standard_output()
        for made in (tuning_table, headline_table, metric_table, cost_table, target_table):
            if (table := made(comparison.result)) is not None:
                for part in table.to_fit(console):
                    console.print(part)
        for note in comparison.footnotes():
            console.print(f"· {note}", markup=False)
        console.print(f"files: {out}", markup=False, soft_wrap=True)


def _show_plan(methods: tuple[str, ...], asked: dict[str, Any], as_json: bool) -> None:
    """What the comparison would need."""
    from commonground.compare import plan_comparison
    from commonground.terminal import standard_output

    plan = plan_comparison(methods, **asked)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=2, ensure_ascii=False))
        return
    console = standard_output()
    for part in plan.table().to_fit(console):
        console.print(part)
    for sentence in plan.sentences(asked["out"]):
        console.print(f"· {sentence}", markup=False, soft_wrap=True)


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and float(text) is not None
    except ValueError:
        return False


def _given(context: click.Context, without: set[str]) -> list[str]:
    """The arguments of the command, as they were given."""
    words: list[str] = []
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if context.get_parameter_source(name) != ParameterSource.COMMANDLINE or name in without:
            continue
        if isinstance(parameter, click.Argument):
            words += map(str, value or ())
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [parameter.opts[0], str(each)]
    return words
