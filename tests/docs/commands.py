"""The command lines in documents, checked against the commands and options that exist."""

import re
import shlex
from collections.abc import Iterator

import click

from qo.cli import main

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ *(?:\$ )?qo ([a-z][a-z-]+\b.*)", re.MULTILINE)
_SHELLS = ("sh", "bash", "console")


def command_lines(document: str) -> Iterator[str]:
    """What follows `qo ` in the shell blocks and in the code of the text."""
    for _, language, code in _FENCE.findall(document):
        if language in _SHELLS:
            yield from _COMMAND.findall(code)
    text = _FENCE.sub("", document)
    for code in re.findall(r"`([^`]+)`", text):
        if re.match(r"qo [a-z]", code):
            yield code.removeprefix("qo ")


def check_command(words: list[str]) -> None:
    """Raise AssertionError if the command, a command below it, or one of its long options does not exist."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        context = click.Context(command)
        below = command.get_command(context, rest[0])
        if below is None:
            assert command is not main and rest[0] not in command.list_commands(context), f"no command {words}"
            break
        command, rest = below, rest[1:]
    shared = ("--url", "--json", "--help", "--version")
    known = {*shared, *(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))}
    unknown = [word for word in rest if word.startswith("--") and word != "--" and word.partition("=")[0] not in known]
    assert not unknown, f"qo {' '.join(words)}: no option {unknown}"


def words_of(line: str) -> list[str]:
    """The words of one command: up to a pipe, a comment, or the next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word[0] in "|&;<>()" or word in ("…", "..."):
                break
            words.append(word)
    except ValueError:  # an unfinished quotation: the command continues on the next line
        pass
    return words
