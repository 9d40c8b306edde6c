"""Text that is safe to show and log: it cannot control a terminal, and its URLs hold no secrets."""

import re
from itertools import pairwise
from urllib.parse import quote, unquote

# Control characters (C0, DEL, C1), line and paragraph separators, direction overrides, lone surrogates.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
_BLANKS = {ord(character): " " for character in "\n\r\t"}
_LATIN = 0xFF
_HIDDEN = "***"
_MAX_NESTING = 4  # levels of URLs inside options of URLs
_QUERY = re.compile(r"[?&#](?=[A-Za-z0-9_.-]+=)")  # a lone ? may be part of a password that is not encoded
_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^:/@?#]*)(?P<password>:.*)?@", re.DOTALL)
_SECRET_OPTION = re.compile(r"pass|secret|token|credential|signature|apikey|api_key|account_key|sas_", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(\w*(?:pass|secret|token)\w*\s*=\s*)('[^']*'|\S+)", re.IGNORECASE
)  # as in conninfo strings of libpq
_FILES = ("sqlite:///", "file:///")  # these have no passwords; an @ is part of the file name


def clean(text: str) -> str:
    """Text on one line, with the characters that control a terminal written as escapes such as \\x1b."""
    return escape(text.translate(_BLANKS))


def clean_lines(text: str) -> str:
    """As `clean`, but line breaks are kept."""
    return "\n".join(clean(line) for line in text.replace("\r\n", "\n").split("\n"))


def escape(text: str) -> str:
    """Text with control characters, direction overrides and lone surrogates escaped; line breaks and tabs are kept."""
    return _HARMFUL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= _LATIN else f"\\u{code:04x}"


def escape_json(text: str) -> str:
    """Escape the characters that control a terminal; in JSON they occur only in strings."""
    if text.isprintable():  # true for none of these characters, and far faster than the search
        return text
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def hide_password(url: str) -> str:
    """The URL without secrets, also for a URL inside an option (`archive=`), encoded or not."""
    return _hidden(url, _MAX_NESTING)


def _hidden(url: str, levels: int) -> str:
    place, *options = _split(url)
    return _hide_login(place) + "".join(_hide_option(option, levels) for option in options)


def _split(url: str) -> list[str]:
    """The part before the options, and each option with the character before it."""
    cuts = [0, *(match.start() for match in _QUERY.finditer(url)), len(url)]
    return [url[start:end] for start, end in pairwise(cuts)]


def _hide_login(place: str) -> str:
    login = _LOGIN.match(place)
    if login is None or place.startswith(_FILES):
        return place
    if login["password"] is not None:
        return f"{login['scheme']}{login['user']}:{_HIDDEN}@{place[login.end() :]}"
    if login["scheme"].startswith("http"):  # the user name is a token
        return f"{login['scheme']}{_HIDDEN}@{place[login.end() :]}"
    return place


def _decoded(value: str) -> str:
    """The value, decoded as often as it was encoded; hidden if it was encoded too often."""
    for _ in range(_MAX_NESTING):
        if (plain := unquote(value)) == value:
            return value
        value = plain
    return _HIDDEN


def _hide_option(option: str, levels: int) -> str:
    name, _, value = option.partition("=")
    if _SECRET_OPTION.search(name):
        return f"{name}={_HIDDEN}"
    if levels == 0:
        return f"{name}={_HIDDEN}"
    plain = _decoded(value)
    hidden = _ASSIGNMENT.sub(rf"\1{_HIDDEN}", _hidden(plain, levels - 1))
    return option if hidden == plain != _HIDDEN else f"{name}={quote(hidden, safe=':/@*=?&, ')}"
