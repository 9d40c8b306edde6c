"""The command line. `group` lists the commands with their modules and turns errors into exit codes."""

from qo.cli.group import main

__all__ = ["main"]
