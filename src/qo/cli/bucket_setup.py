"""`qo bucket-setup`: make a bucket fit for a queue, or print what each role may do in it."""

import json
from urllib.parse import parse_qs, urlsplit

import click
from rich.text import Text

from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.policy import ROLES, Role, policy
from qo.buckets.setup import SetupStep, set_up
from qo.cli.audited import audited_bucket
from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import clean
from qo.errors import InvalidSetting
from qo.url_secrets import hide_password

_ELSEWHERE = {
    "gs": "turn versions on with: gcloud storage buckets update gs://BUCKET --versioning",
    "az": "turn versions on in the storage account's data protection settings",
    "file": "add ?versions=true to the URL; a directory needs no other set-up",
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
@option("--origin", "origins", multiple=True, metavar="URL", help="Where a dashboard is served from; repeat for more.")
@option(
    "--noncurrent-days",
    type=click.IntRange(1, 3650),
    default=30,
    metavar="DAYS",
    help="Keep replaced and deleted versions this long.",
)
@option("--print-policy", "role", type=click.Choice(ROLES), help="Only print the IAM policy of a role.")
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
    """Turn on versioning, let old versions go after a while, and let the dashboard's pages in.

    What others have set up in the bucket stays as it is, and repeating the command is harmless.
    """
    url = store or call.url
    address = _address(url)
    if role is not None:
        click.echo(json.dumps(policy(address, role, layout=_layout(url)), indent=2))
        return
    origins = _checked(origins)
    with audited_bucket(url, "bucket-setup", dry_run=dry_run) as action:
        steps = set_up(address, origins=origins, noncurrent_days=noncurrent_days, dry_run=dry_run)
        changed = [f"{step.name}: {step.detail}" for step in steps if not step.is_done]
        action.target = "; ".join(changed)
        if not changed:
            action.number = 0  # nothing to record
    if call.json:
        call.answer({"url": str(address), "dry_run": dry_run, "steps": [_view(step) for step in steps]})
        return
    call.out.print(Text(clean(str(address)), style="bold"))
    for step in steps:
        mark, what = ("=", "already") if step.is_done else ("·", "would be") if dry_run else ("✔", "now")
        call.out.print(
            Text.assemble((f"{mark} ", "green"), f"{step.name} ({what})", (f"  {clean(step.detail)}", "dim"))
        )


def _address(url: str) -> BucketAddress:
    scheme = urlsplit(url).scheme
    if scheme != "s3":
        raise InvalidSetting(
            f"{hide_password(url)!r:.200} is not set up this way; {_ELSEWHERE.get(scheme, 'name an s3:// bucket')}"
        )
    return parse_address(url)


def _layout(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("layout", ["tasks"])[-1]


def _checked(origins: tuple[str, ...]) -> tuple[str, ...]:
    """An origin is a scheme and a host: with a path a browser would never match it, and * would let everyone in."""
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query or "*" in origin:
            raise InvalidSetting(f"--origin {origin!r:.100} is not an origin such as https://tasks.example.com")
    return origins


def _view(step: SetupStep) -> dict[str, object]:
    return {"name": step.name, "already": step.is_done, "detail": step.detail}
