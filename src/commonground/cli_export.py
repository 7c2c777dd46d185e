"""``commonground export``: a run's LoRA adapters as folders that peft loads."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from commonground.cli_options import trust_code

__all__ = ["export"]


@click.command(short_help="A run's LoRA adapters as peft folders, or merged.")
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="the folder to write; new or empty")
@click.option("--client", metavar="ID|all", help="a client's own model with its head  [default: the global adapter]")
@click.option("--merge", is_flag=True, help="add the update to the base's weights: a plain transformers model")
@trust_code
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def export(run_dir: Path, out: Path, client: str | None, merge: bool, trust_code: bool, quiet: bool) -> None:
    """Write the LoRA adapter of RUN_DIR as a folder that peft's from_pretrained loads.

    With --client all the folders client-0, client-1, … in --out hold every client's own. Where every client has a task
    head of its own, the global adapter's is untrained. FLoRA merges dense sums of products, whose factors are recovered
    exactly; where their rank is too large for an adapter, --merge remains.
    """
    from commonground.adapt import export_adapter
    from commonground.console import human_bytes, standard_output
    from commonground.engine import load_run

    written = export_adapter(load_run(run_dir, trust_code=trust_code), out, client=client, merge=merge)
    if quiet:
        return
    table = Table("folder", "model", "task head", "weights")
    for one in written:
        whose = "global" if one.client is None else f"client {one.client}"
        # The names alone: whole paths would break at the table's edge.
        table.add_row(Path(one.folder).name, whose, one.head, human_bytes(one.bytes))
    console = standard_output()
    console.print(table)
    console.print(f"files: {out}", soft_wrap=True, highlight=False)
