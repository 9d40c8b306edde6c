"""`qo dashboard`: publish the dashboard to a bucket and create links to it."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import click
from rich.text import Text

from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.setup import policy
from qo.cli.audit import audited_bucket
from qo.cli.context import DURATION, CommandGroup, Invocation, common, examples, option
from qo.cli.output import echo
from qo.clock import iso, system_clock
from qo.engines.layout_detection import DEFAULT_LAYOUT
from qo.engines.layouts import default_layout, parse, stored_layout
from qo.errors import InvalidSetting, StorageError
from qo.model import plural
from qo.safe_text import clean
from qo.web.static_site import make_link, obtain, page_url, publish
from qo.web.static_site.credentials import Access
from qo.web.static_site.publisher import Published, Put, check_page, page_files, read_config

_LAYOUTS = ("tasks", "one")  # that the page can read
_MAX_EXPIRY = 36 * 3600.0  # seconds; the longest lifetime that AWS STS grants
_USE_SERVER = "run a server instead: qo serve --url"


@click.group(
    "dashboard",
    cls=CommandGroup,
    epilog=examples(
        "qo dashboard publish --public --url s3://my-tasks",
        "qo dashboard link --url s3://my-tasks --expires 2h",
        "qo dashboard link --url s3://my-tasks --write --role arn:aws:iam::123456789012:role/ops",
    ),
)
@common
def command(call: Invocation) -> None:
    """Publish the dashboard to an S3 bucket, as a page that reads the bucket without a server.

    Publish it once and after every upgrade, and create links for its users. For other stores, use `qo serve`.
    """
    click.get_current_context().find_root().obj = call  # options given before `publish` apply to it


@command.command("publish", epilog=examples("qo dashboard publish s3://my-tasks --public"))
@common
@click.argument("store", required=False, metavar="[URL]")
@option("--public", is_flag=True, help="Make the page's files public in the bucket's policy; the tasks stay private.")
@option("--page", metavar="URL", help="URL at which you serve the files yourself.  [default: the bucket]")
@option("--dry-run", is_flag=True, help="Only print what would be done.")
def publish_(call: Invocation, store: str | None, page: str | None, *, public: bool, dry_run: bool) -> None:
    """Write the page to ui/ in the bucket. Running it again writes only the files that changed."""
    url = store or call.url
    address, layout = place(url)
    at = check_page(page) if page else page_url(address)
    with audited_bucket(url, "dashboard.publish", dry_run=dry_run) as action:
        action.target = at + (", readable by everyone" if public else "")
        published = publish(address, page_files(address, layout, at), public=public, page=at, dry_run=dry_run)
        if not public and all(put.outcome == "same" for put in published.files):
            action.number = 0  # nothing to record
    if call.json:
        call.print_json(_published_view(address, published, at, dry_run=dry_run))
        return
    call.console.print(Text(clean(at), style="bold"))
    for put in published.files:
        if put.outcome != "same":
            call.console.print(_line(put, dry_run=dry_run))
    same = sum(put.outcome == "same" for put in published.files)
    if same:
        call.console.print(Text(f"= {plural(same, 'file')} unchanged", style="dim"))
    if published.is_public is False:
        click.echo(
            "browsers cannot read the page yet: publish with --public, or serve ui/ yourself and pass --page URL",
            err=True,
        )


@command.command(
    "link", epilog=examples("qo dashboard link s3://my-tasks", "qo dashboard link s3://my-tasks --write --expires 8h")
)
@common
@click.argument("store", required=False, metavar="[URL]")
@option("--write", is_flag=True, help="Allow replay, cancel, archive, delete, pause and limit.")
@option("--expires", type=DURATION, default=3600.0, help="How long the link is valid, at most 36h.")
@option("--own-credentials", "own", is_flag=True, help="Use your own credentials, with all their permissions.")
@option(
    "--paste",
    is_flag=True,
    help="Print the page's address and a code to paste into it, which no browser history keeps.",
)
@option("--role", default="", metavar="ARN", help="IAM role to assume, restricted to this store.")
@option("--sts-endpoint", "sts", default="", metavar="URL", help="Endpoint of the token service.  [default: Amazon's]")
@option("--page", metavar="URL", help="URL of the page.  [default: where it was published]")
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
    """Print a link that opens the page with temporary credentials. Treat it like a password.

    The credentials are in the fragment of the link, as signing keys for its days instead of the secret. Browsers do
    not send fragments to servers, but keep them in their history. With --paste the command prints the credentials as a
    code to paste into the page, which the history does not keep.
    """
    url = store or call.url
    address, layout = place(url)
    if not 60 <= expires <= _MAX_EXPIRY:  # noqa: PLR2004 - a minute
        raise InvalidSetting(f"--expires must be between 1m and 36h, not {expires:g}s")
    if address.anonymous:
        raise InvalidSetting("an anonymous URL has no credentials for a link; remove anonymous= from it")
    at = check_page(page) if page else _published_at(address)
    if own and role:
        raise InvalidSetting("--role and --own-credentials cannot be combined")
    now = system_clock()
    restriction = policy(address, "operator" if write else "dashboard", layout=layout)
    with audited_bucket(url, "dashboard.link") as action:
        access = obtain(address, restriction, now=now, seconds=expires, role=role, sts=sts, own=own)
        link = make_link(address, access, page=at, layout=layout, write=write, now=now, until=now + expires)
        action.target = _in_words(access, write=write, expires_at=link.expires_at)
    notes = _notes(access, link.dates, write=write)
    if call.json:
        call.print_json(
            {
                **({"page": link.page, "code": link.code} if paste else {"link": link.url}),
                "expires_at": iso(link.expires_at),
                "write": write,
                "credentials": access.kind,
                "remarks": notes,
            }
        )
        return
    if paste:
        click.echo(f"{link.page}\n{link.code}")
        click.echo(f"open the page and paste the code; it is valid until {iso(link.expires_at)}", err=True)
    else:
        click.echo(link.url)
        click.echo(f"valid until {iso(link.expires_at)}; treat it like a password", err=True)
        click.echo("note: the browser that opens the link keeps it in its history; --paste avoids this", err=True)
    for note in notes:
        echo(f"note: {note}", err=True)


def place(url: str) -> tuple[BucketAddress, str]:
    """The bucket and its layout. Raises InvalidSetting if the page cannot read it."""
    scheme = urlsplit(url).scheme
    if scheme != "s3":
        raise InvalidSetting(f"the page reads S3 buckets only, not {scheme or 'this'}://; {_USE_SERVER} {scheme}://…")
    layouts = [part.partition("=")[2] for part in urlsplit(url).query.split("&") if part.startswith("layout=")]
    layout = layouts[-1] if layouts else _found_layout(url)
    if layout not in _LAYOUTS:
        raise InvalidSetting(
            f"the page cannot read the layout {layout!r:.40}; create a queue with ?layout=tasks in its URL, or"
            f" {_USE_SERVER} …"
        )
    return parse_address(parse(url, {})[-1]), layout


def _found_layout(url: str) -> str:
    try:
        return asyncio.run(stored_layout(url)) or default_layout(url)
    except StorageError:  # these credentials may not allow reading the queue
        return DEFAULT_LAYOUT


def _published_at(address: BucketAddress) -> str:
    config = read_config(address)
    if config is None:
        raise StorageError(f"the dashboard is not published in {address}; run: qo dashboard publish {address}")
    return check_page(str(config.get("page") or page_url(address)))


def _in_words(access: Access, *, write: bool, expires_at: float) -> str:
    may = "read and write" if write else "read"
    return f"{may}, {access.kind} credentials {access.access_key_id}, until {iso(expires_at)}"


def _notes(access: Access, dates: tuple[str, ...], *, write: bool) -> list[str]:
    notes = []
    if access.kind == "own":
        days = " and ".join(f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in dates)
        notes.append(
            f"the link uses your own credentials, so S3 accepts its keys on {days} (UTC) whatever --expires says; "
            "only the page checks the expiry"
        )
    if not access.is_narrow:
        may = "do everything that your own credentials allow" + ("" if write else ", including writing")
        notes.append(
            f"the holder of the link can {may}; to restrict it use --role, or credentials with the policy that "
            f"qo bucket-setup --print-policy {'operator' if write else 'dashboard'} prints"
        )
    return notes


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
