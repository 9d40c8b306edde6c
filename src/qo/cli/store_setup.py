"""`qo migrate` and `bucket-setup`: prepare a store."""

import asyncio
import json
from urllib.parse import urlsplit

import click
from rich.text import Text

from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.setup import ROLES, Role, SetupStep, policy, set_up
from qo.cli.audit import audited, audited_bucket
from qo.cli.context import Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.client import Client
from qo.clock import iso
from qo.engines import open_engine, schema_of
from qo.engines.layouts import is_named, parse, stored_layout
from qo.errors import InvalidSetting
from qo.formats import Schema
from qo.model import plural
from qo.safe_text import clean, hide_password
from qo.web.http.tokens import OldToken, discard_old_tokens, find_old_tokens, move_old_tokens

_OTHER_STORES = {
    "gs": "turn on versioning with: gcloud storage buckets update gs://BUCKET --versioning",
    "az": "turn on versioning in the storage account's data protection settings",
    "file": "add ?versions=true to the URL; a folder needs no other preparation",
}


@click.command(
    "migrate",
    epilog=examples("qo migrate", "qo migrate postgresql://db.example/app --check", "qo migrate --tokens move"),
)
@common
@click.argument("store", required=False, metavar="[URL]")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a migration is needed.")
@click.option(
    "--tokens",
    type=click.Choice(("move", "discard")),
    help="Move the tokens of earlier versions to their new place, or discard them.",
)
def migrate(call: Invocation, store: str | None, tokens: str | None, *, check: bool) -> int:
    """Create or update a store's tables. Opening a store does this too. Run it as a separate step if only a privileged
    user may change tables. Concurrent runs are safe.

    Earlier versions kept tokens where a bucket's workers and producers could write them. These tokens are not accepted
    until an administrator has checked and moved them.
    """
    url = store or call.url
    if check and tokens is not None:
        raise InvalidSetting("--check and --tokens cannot be combined: --check changes nothing")
    before = asyncio.run(schema_of(url))
    after = before if check or before is None else asyncio.run(_migrate(url, before))
    is_outdated = after is not None and not after.is_current
    old = None if is_outdated else asyncio.run(_handle_old_tokens(url, tokens))
    if call.json:
        call.print_json(_schema_view(url, before, after) | _token_view(old, tokens))
    else:
        call.console.print(clean(f"{hide_password(url)}: {_schema_summary(before, after)}"), markup=False)
        for line in _token_lines(old, tokens):
            call.console.print(clean(line), markup=False)
    return Exit.ERROR if is_outdated or (old is not None and tokens is None) else Exit.CLEAN


async def _migrate(url: str, before: Schema) -> Schema | None:
    async with Client(open_engine(url)) as client:
        after = await schema_of(url)
        if after is not None and after.found != before.found:
            async with audited(client, "migrate", f"schema {before.found or 'none'} to {after.found}"):
                pass
    return after


async def _handle_old_tokens(url: str, choice: str | None) -> list[OldToken] | None:
    """The tokens of earlier versions; None if there are none, or if only the server's administrator can move them."""
    async with Client(open_engine(url)) as client:
        if client.engine.is_remote:
            return None
        if choice is None:
            return await find_old_tokens(client.engine)
        async with audited(client, "migrate", f"old tokens: {choice}") as progress:
            old = await (move_old_tokens if choice == "move" else discard_old_tokens)(client.engine)
            progress.number = len(old)
    return old


def _token_view(old: list[OldToken] | None, choice: str | None) -> dict[str, object]:
    if old is None:
        return {}
    done = {"move": "moved", "discard": "discarded"}.get(choice or "", "found")
    return {
        "old_tokens": done,
        "tokens": [{"name": token.name, "scopes": token.scopes, "created_at": iso(token.created_at)} for token in old],
    }


def _token_lines(old: list[OldToken] | None, choice: str | None) -> list[str]:
    if old is None:
        return []
    listed = [f"  {token.name}  {','.join(token.scopes)}  created {iso(token.created_at)}" for token in old]
    if choice is not None:
        word = "moved" if choice == "move" else "discarded"
        return [f"{word} {plural(len(old), 'token')} of an earlier version" + (":" if old else ""), *listed]
    if not listed:
        listed = ["  (none of them can be read)"]
    return [
        "this store has tokens of an earlier version, which every role of a bucket could write; they are not accepted:",
        *listed,
        "if you know all of them, run: qo migrate --tokens move; otherwise: qo migrate --tokens discard",
    ]


def _schema_view(url: str, before: Schema | None, after: Schema | None) -> dict[str, object]:
    shown: dict[str, object] = {"url": hide_password(url), "current": after is None or after.is_current}
    if before is not None and after is not None:
        shown |= {"found": before.found, "version": after.found, "known": after.known}
    return shown


def _schema_summary(before: Schema | None, after: Schema | None) -> str:
    if before is None or after is None:
        return "nothing to migrate: this kind of store has no tables, and opening it upgrades its format"
    if not after.is_current:
        return f"schema {after.found or 'missing'}, but this version of qo needs schema {after.known}; run qo migrate"
    if before.found != after.found:
        return f"migrated from schema {before.found} to {after.found}"
    return f"schema {after.found} is up to date"


@click.command(
    "bucket-setup",
    epilog=examples(
        "qo bucket-setup s3://my-tasks",
        "qo bucket-setup s3://my-tasks/team --origin https://tasks.example.com --dry-run",
        "qo bucket-setup 's3://my-tasks?layout=one' --print-policy worker",
    ),
)
@common
@click.argument("store", required=False, metavar="[URL]")
@option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Origin from which a dashboard is served; repeat for more.",
)
@option(
    "--noncurrent-days",
    type=click.IntRange(1, 3650),
    default=30,
    metavar="DAYS",
    help="How long to keep replaced and deleted versions.",
)
@option("--print-policy", "role", type=click.Choice(ROLES), help="Print the IAM policy of a role and change nothing.")
@option("--dry-run", is_flag=True, help="Only print what would be done.")
def bucket_setup(
    call: Invocation,
    store: str | None,
    origins: tuple[str, ...],
    noncurrent_days: int,
    role: Role | None,
    *,
    dry_run: bool,
) -> None:
    """Turn on versioning, add a lifecycle rule for old versions, and allow the dashboard's origins.

    Other settings of the bucket are not changed. It is safe to run the command again.
    """
    url = store or call.url
    address = _address(url)
    if role is not None:
        layout, _, _ = parse(url, {})
        click.echo(json.dumps(policy(address, role, layout=layout), indent=2))
        if not is_named(url):
            click.echo(f"note: for the layout `{layout}`; name another one in the URL with ?layout=", err=True)
        return
    origins = _check_origins(origins)
    found = asyncio.run(stored_layout(url))
    with audited_bucket(url, "bucket-setup", dry_run=dry_run) as action:
        steps = set_up(address, origins=origins, noncurrent_days=noncurrent_days, dry_run=dry_run)
        changed = [f"{step.name}: {step.detail}" for step in steps if not step.is_done]
        action.target = "; ".join(changed)
        if not changed:
            action.number = 0  # nothing to record
    if call.json:
        views = [_step_view(step) for step in steps]
        call.print_json({"url": str(address), "layout": found, "dry_run": dry_run, "steps": views})
        return
    queue = "no queue yet" if found is None else f"a queue in the layout `{found}`"
    call.console.print(Text.assemble((clean(str(address)), "bold"), (f"  {queue}", "dim")))
    for step in steps:
        mark, state = ("=", "already") if step.is_done else ("·", "would be") if dry_run else ("✔", "now")
        call.console.print(
            Text.assemble((f"{mark} ", "green"), f"{step.name} ({state})", (f"  {clean(step.detail)}", "dim"))
        )


def _address(url: str) -> BucketAddress:
    scheme = urlsplit(url).scheme
    if scheme != "s3":
        raise InvalidSetting(
            f"{hide_password(url)!r:.200} is not an s3:// bucket; {_OTHER_STORES.get(scheme, 'pass an s3:// URL')}"
        )
    return parse_address(url)


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Raise for anything but a scheme and a host: browsers never match an origin with a path, and * matches all."""
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query or "*" in origin:
            raise InvalidSetting(f"--origin {origin!r:.100} is not an origin such as https://tasks.example.com")
    return origins


def _step_view(step: SetupStep) -> dict[str, object]:
    return {"name": step.name, "already": step.is_done, "detail": step.detail}
