"""Text that cannot control a terminal: control characters and direction overrides are escaped."""

import re

# Control characters (C0, DEL, C1), line and paragraph separators, direction overrides, lone surrogates.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
_BLANKS = {ord(character): " " for character in "\n\r\t"}
_LATIN = 0xFF


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
