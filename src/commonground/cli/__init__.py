"""The command ``commonground``: a file for each of its subcommands, and :func:`main`, which runs it."""

from commonground.cli.command import cli, main

__all__ = ["cli", "main"]
