"""`qo bucket-setup`: prepare a bucket, or print the IAM policy of a role."""

import asyncio
import json
from urllib.parse import urlsplit

import click
from rich.text import Text

from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.policy import ROLES, Role, policy
from qo.buckets.setup import SetupStep, set_up
from qo.cli.audit import audited_bucket
from qo.cli.context import Invocation, common, examples, option
from qo.engines.layouts import is_named, parse, stored_layout
from qo.errors import InvalidSetting
from qo.terminal_text import clean
from qo.url_secrets import hide_password

_OTHER_STORES = {
    "gs": "turn on versioning with: gcloud storage buckets update gs://BUCKET --versioning",
    "az": "turn on versioning in the storage account's data protection settings",
    "file": "add ?versions=true to the URL; a folder needs no other preparation",
}


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
def command(
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
        views = [_view(step) for step in steps]
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
            f"{hide_password(url)!r:.200} is not an s3:// bucket; {_OTHER_STORES.get(scheme, 'pass the URL of one')}"
        )
    return parse_address(url)


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Raise for anything but a scheme and a host: browsers never match an origin with a path, and * matches all."""
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query or "*" in origin:
            raise InvalidSetting(f"--origin {origin!r:.100} is not an origin such as https://tasks.example.com")
    return origins


def _view(step: SetupStep) -> dict[str, object]:
    return {"name": step.name, "already": step.is_done, "detail": step.detail}
