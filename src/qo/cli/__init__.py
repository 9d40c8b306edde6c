"""The command line. One file per command; `group` lists them and turns errors into exit codes."""

from qo.cli.group import main

__all__ = ["main"]
