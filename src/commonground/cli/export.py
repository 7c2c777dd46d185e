"""``commonground export``: a run's models as folders that can be taken away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from commonground.cli.parameters import NameChoice, trust_code
from commonground.errors import ConfigError
from commonground.existing import check_run
from commonground.terminal import human_bytes, say, standard_output

if TYPE_CHECKING:
    from commonground.engine.run import Run
    from commonground.export.models import Format

__all__ = ["export"]


@click.command(
    short_help="A client's model to take away: safetensors, ONNX, torch, peft.",
    epilog="Example: commonground export runs/churn --client customer-17 --format onnx --out customer-17",
)
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="the folder to write; new or empty")
@click.option(
    "--client", metavar="ID|all", help="a client's own model  [default: the global one, or of one client its own]"
)
@click.option(
    "--format",
    "format_",
    type=NameChoice(["safetensors", "onnx", "torch", "peft"]),
    help="how it is written  [default: peft for models hf:…, safetensors for all others]",
)
@click.option("--merge", is_flag=True, help="of models hf:…: add the update to the base's weights (as safetensors)")
@trust_code
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def export(
    run_dir: Path, out: Path, client: str | None, format_: Format | None, merge: bool, trust_code: bool, quiet: bool
) -> None:
    """Write a model of RUN_DIR as a folder for use elsewhere, with a README.md that says how.

    safetensors: weights and settings, which cg.load_exported reads (of a pretrained language model: transformers).
    onnx: one file from raw samples to probabilities or numbers, scaling inside, compared with the model by ONNX Runtime
    before it is handed out. torch: the same as a program of torch.export. peft: the LoRA adapter of a pretrained model,
    which peft's from_pretrained loads.

    With --client all the folders client-0, client-1, … in --out hold every client's own. Where every client has a task
    head of its own, the global adapter's is untrained. FLoRA merges dense sums of products, whose factors are recovered
    exactly; where their rank is too large for an adapter, --merge remains.
    """
    check_run(run_dir)
    if merge and format_ not in (None, "safetensors"):
        raise ConfigError(f"--merge writes a plain transformers model as safetensors, not as {format_}")
    from commonground.engine import load_run
    from commonground.export import export_adapter, export_model

    run = load_run(run_dir, trust_code=trust_code)
    if client is None:
        client = _only_client(run)
    if merge:
        written = export_adapter(run, out, client=client, merge=True)
    else:
        written = export_model(run_dir, out, client=client, format=format_, trust_code=trust_code)
    if quiet:
        return
    trained, called = run.trained, run.trained.known.for_people
    if run.unfinished:
        say(run.unfinished)
    if trained.remark and client is not None:
        say(trained.remark)
    table = Table("folder", "model", "task head", "weights")
    for one in written:
        whose = called(one.client)
        # The names alone: whole paths would break at the table's edge.
        table.add_row(Path(one.folder).name, whose, one.head, human_bytes(one.bytes))
    console = standard_output()
    console.print(table)
    console.print(f"files: {out}", soft_wrap=True, highlight=False)


def _only_client(run: Run) -> str | None:
    """The name of a run's one client, if its own model is here, as on its own host; there nobody has a use for a global
    one with a head that was never trained.
    """
    name, *others = run.trained.known.names
    if others or name == "all":
        return None
    try:
        run.trained.own(0)
    except ConfigError:  # it is on the client's own host
        return None
    return name
