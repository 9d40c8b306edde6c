"""`qo encryption-key`: create a key for `qo.Encrypted`. It needs no store, so it imports none."""

import click

from qo.cli.context import Invocation, common, examples
from qo.encryption import Encrypted


@click.command(
    "encryption-key", epilog=examples("qo encryption-key", 'export QO_ENCRYPTION_KEYS="$(qo encryption-key)"')
)
@common
def command(call: Invocation) -> None:
    """Print a new key for codec=qo.Encrypted(keys=[...]). It is not stored anywhere: keep it in your secrets.

    Commands and `qo serve` read keys from QO_ENCRYPTION_KEYS, separated by commas. The first key encrypts, and each of
    them decrypts. Without a key they show encrypted values as such.
    """
    key = Encrypted.new_key()
    if call.json:
        call.print_json({"key": key})
    else:
        click.echo(key)
