"""`qo completion`: the completion script for a shell."""

import click
from click.shell_completion import get_completion_class

from qo.cli.context import Invocation, common, examples
from qo.errors import InvalidSetting

EXAMPLES = examples(
    'eval "$(qo completion bash)"                              # in ~/.bashrc',
    'eval "$(qo completion zsh)"                               # in ~/.zshrc',
    "qo completion fish > ~/.config/fish/completions/qo.fish",
)


@click.command("completion", epilog=EXAMPLES)
@common
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(call: Invocation, shell: str) -> None:
    """Print the completion script for your shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidSetting(f"there is no completion for {shell}")
    script = kind(click.get_current_context().find_root().command, {}, "qo", "_QO_COMPLETE").source()
    if call.json:
        call.answer({"shell": shell, "script": script})
    else:
        click.echo(script)
