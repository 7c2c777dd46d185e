"""``commonground completion``: what a shell has to run so that Tab completes names and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from commonground.cli_options import NameChoice
from commonground.completion import VARIABLE

__all__ = ["completion"]


@click.command(
    short_help="Let Tab complete options, methods, data, models and settings.",
    epilog='Example: eval "$(commonground completion bash)"',
)
@click.argument("shell", type=NameChoice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the lines that SHELL (bash, zsh or fish) has to run.

    To have them in every new shell:

    \b
      bash   echo 'eval "$(commonground completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(commonground completion zsh)"' >> ~/.zshrc
      fish   commonground completion fish > ~/.config/fish/completions/commonground.fish
    """  # noqa: D301 (\b is click's)
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "commonground", VARIABLE).source())
