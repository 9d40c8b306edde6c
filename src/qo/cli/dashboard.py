"""`qo dashboard`: the dashboard as a page in the bucket, with nothing to run."""

from typing import Any
from urllib.parse import urlsplit

import click
from rich.text import Text

from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.policy import policy
from qo.cli.audited import audited_bucket
from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import clean, echo
from qo.cli.params import DURATION
from qo.clock import iso, system_clock
from qo.engines.layouts import parse
from qo.errors import InvalidSetting, StorageError
from qo.web.static_site import make_link, obtain, page_url, publish
from qo.web.static_site.credentials import Access
from qo.web.static_site.files import page_files
from qo.web.static_site.location import check_page
from qo.web.static_site.publisher import Published, Put, read_config

LAYOUTS = ("tasks", "one")
LONGEST = 36 * 3600.0  # seconds: what a token service gives at most
_ELSEWHERE = "a page in a browser cannot read it; run a server beside it instead: qo serve --url"


@click.group(
    "dashboard",
    epilog=examples(
        "qo dashboard publish --public --url s3://my-tasks",
        "qo dashboard link --url s3://my-tasks --expires 2h",
        "qo dashboard link --url s3://my-tasks --write --role arn:aws:iam::123456789012:role/ops",
    ),
)
@common
def command(call: Invocation) -> None:
    """The dashboard without a server: a page in the bucket that reads the bucket itself.

    Publish it once and after every upgrade; give people links. Where there is no s3:// bucket, `qo serve` shows it.
    """
    click.get_current_context().find_root().obj = call  # what stands before `publish` holds for it


@command.command("publish", epilog=examples("qo dashboard publish s3://my-tasks --public"))
@common
@click.argument("store", required=False, metavar="[URL]")
@option("--public", is_flag=True, help="Make the page's files public by the bucket's policy; the queue stays private.")
@option("--page", metavar="URL", help="Where you serve the files yourself.  [default: the bucket]")
@option("--dry-run", is_flag=True, help="Only print what would be done.")
def publish_(call: Invocation, store: str | None, page: str | None, *, public: bool, dry_run: bool) -> None:
    """Put the page under ui/ in the bucket. Repeating it writes only what changed."""
    url = store or call.url
    address, layout = place(url)
    at = check_page(page) if page else page_url(address)
    with audited_bucket(url, "dashboard.publish", dry_run=dry_run) as action:
        action.target = at + (", readable by everyone" if public else "")
        published = publish(address, page_files(address, layout, at), public=public, page=at, dry_run=dry_run)
        if not public and all(put.outcome == "same" for put in published.files):
            action.number = 0  # nothing to record
    if call.json:
        call.answer(_published_view(address, published, at, dry_run=dry_run))
        return
    call.out.print(Text(clean(at), style="bold"))
    for put in published.files:
        if put.outcome != "same":
            call.out.print(_line(put, dry_run=dry_run))
    same = sum(put.outcome == "same" for put in published.files)
    if same:
        call.out.print(Text(f"= {same} files as they were", style="dim"))
    if published.is_public is False:
        click.echo(
            "browsers cannot read the page yet: publish with --public, or serve ui/ from a place of yours with --page",
            err=True,
        )


@command.command(
    "link", epilog=examples("qo dashboard link s3://my-tasks", "qo dashboard link s3://my-tasks --write --expires 8h")
)
@common
@click.argument("store", required=False, metavar="[URL]")
@option("--write", is_flag=True, help="Let the link's holder replay, cancel, archive, delete, pause and limit.")
@option("--expires", type=DURATION, default=3600.0, help="How long the link is valid, at most 36h.")
@option(
    "--own-credentials", "own", is_flag=True, help="Put your own credentials, with all their rights, into the link."
)
@option("--paste", is_flag=True, help="Print the address and a code to paste into the page; a history keeps no code.")
@option("--role", default="", metavar="ARN", help="A role to assume for it, narrowed to this queue.")
@option("--sts-endpoint", "sts", default="", metavar="URL", help="Where tokens are given out, if not by Amazon.")
@option("--page", metavar="URL", help="Where the page is served.  [default: where it was published]")
def link_(
    call: Invocation,
    store: str | None,
    *,
    expires: float,
    role: str,
    sts: str,
    page: str | None,
    write: bool,
    own: bool,
    paste: bool,
) -> None:
    """Print an address that opens the page. Whoever has it can do what it can: send it like a password.

    It carries short-lived credentials in its fragment: the signing keys of its days rather than the secret. A browser
    sends a fragment to nobody, but its history keeps the whole address. With --paste the credentials are a code to
    paste into the page, which no history keeps.
    """
    url = store or call.url
    address, layout = place(url)
    if not 60 <= expires <= LONGEST:  # noqa: PLR2004 - a minute
        raise InvalidSetting(f"--expires {expires:g}s is not between 1m and 36h")
    if address.anonymous:
        raise InvalidSetting("an anonymous URL has no credentials to make a link of; leave out anonymous=")
    at = check_page(page) if page else _published_at(address)
    if own and role:
        raise InvalidSetting("--role gives the link credentials of its own, so leave out --own-credentials")
    now = system_clock()
    narrow = policy(address, "operator" if write else "dashboard", layout=layout)
    with audited_bucket(url, "dashboard.link") as action:
        access = obtain(address, narrow, now=now, seconds=expires, role=role, sts=sts, own=own)
        link = make_link(address, access, page=at, layout=layout, write=write, now=now, until=now + expires)
        action.target = _in_words(access, write=write, expires_at=link.expires_at)
    remarks = _remarks(access, link.dates, write=write)
    if call.json:
        call.answer(
            {
                **({"page": link.page, "code": link.code} if paste else {"link": link.url}),
                "expires_at": iso(link.expires_at),
                "write": write,
                "credentials": access.kind,
                "remarks": remarks,
            }
        )
        return
    if paste:
        click.echo(f"{link.page}\n{link.code}")
        click.echo(f"open the page and paste the code; it is good until {iso(link.expires_at)}", err=True)
    else:
        click.echo(link.url)
        click.echo(f"good until {iso(link.expires_at)}; send it like a password", err=True)
        click.echo("note: the history of the browser that opens it keeps it; --paste avoids that", err=True)
    for remark in remarks:
        echo(f"note: {remark}", err=True)


def place(url: str) -> tuple[BucketAddress, str]:
    """The bucket and its layout, if a page can read it."""
    scheme = urlsplit(url).scheme
    if scheme != "s3":
        raise InvalidSetting(f"{scheme or 'this'}:// is not an S3 bucket, and {_ELSEWHERE} {scheme}://…")
    asked = [part.partition("=")[2] for part in urlsplit(url).query.split("&") if part.startswith("layout=")]
    if asked and asked[-1] not in LAYOUTS:
        raise InvalidSetting(f"the layout {asked[-1]!r:.40} is one a page cannot read; {_ELSEWHERE} …")
    layout, _, bucket = parse(url, {})
    return parse_address(bucket), layout


def _published_at(address: BucketAddress) -> str:
    config = read_config(address)
    if config is None:
        raise StorageError(f"nothing is published in {address} yet; run: qo dashboard publish {address}")
    return check_page(str(config.get("page") or page_url(address)))


def _in_words(access: Access, *, write: bool, expires_at: float) -> str:
    may = "read and write" if write else "read"
    return f"{may}, {access.kind} credentials {access.access_key_id}, until {iso(expires_at)}"


def _remarks(access: Access, dates: tuple[str, ...], *, write: bool) -> list[str]:
    remarks = []
    if access.kind == "own":
        days = " and ".join(f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in dates)
        remarks.append(
            f"no token service was used: the store accepts these keys on {days} (UTC), however short --expires is; "
            "only the page minds the expiry"
        )
    if not access.is_narrow:
        may = (
            "do whatever your own credentials may"
            if write
            else "do whatever your own credentials may, writing included"
        )
        remarks.append(
            f"whoever has the link could {may}; to narrow it use --role, or credentials under the policy that "
            f"qo bucket-setup --print-policy {'operator' if write else 'dashboard'} prints"
        )
    return remarks


def _line(put: Put, *, dry_run: bool) -> Text:
    word = f"would be {put.outcome}" if dry_run else put.outcome
    return Text.assemble(("✔ ", "green"), clean(put.key), (f"  {word}", "dim"))


def _published_view(address: BucketAddress, published: Published, page: str, *, dry_run: bool) -> dict[str, Any]:
    return {
        "url": str(address),
        "page": page,
        "dry_run": dry_run,
        "public": published.is_public,
        "files": [{"key": put.key, "outcome": put.outcome, "size": put.size} for put in published.files],
    }
