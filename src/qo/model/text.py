"""Values from callers: type checks, quoting in messages, and texts that every store accepts."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

ERROR_LIMIT = 16 * 1024  # bytes of an error's text
LOG_LIMIT = 16 * 1024  # bytes of the log lines of an attempt
PROGRESS_TEXT_LIMIT = 200  # characters
_SIMILAR = 0.6  # minimum similarity of two option names, from 0 to 1, to suggest one for the other
_CUT = "\n... (cut) ...\n"
MAX_NOTICE_LENGTH = 64  # characters of the line that says how many lines were dropped
_NOTICE = re.compile(r"\(([\d,]+) earlier lines? not kept\)\n")


def is_a(value: object, *kinds: type) -> bool:
    """Whether a value has one of these types; a bool is not a number. Callers may ignore annotations."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def show(value: object) -> str:
    """A value for a message, shortened. Python refuses to print very long integers."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"this {type(value).__name__}"


def unknown_options(given: Iterable[str], known: Iterable[str]) -> str:
    """A message that names an unknown option and suggests a similar one. Empty if all are known."""
    names = sorted(known)
    unknown = sorted(set(given) - set(names))
    if not unknown:
        return ""
    similar = get_close_matches(unknown[0], names, n=1, cutoff=_SIMILAR)
    hint = f"did you mean {similar[0]!r}?" if similar else f"the options are: {', '.join(names)}"
    return f"there is no option {unknown[0]!r:.80}; {hint}"


def plural(number: float, noun: str = "task") -> str:
    """A number with its noun: `1 task`, `2,000 tasks`, `0.5 tasks`."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}" + ("" if number == 1 else "s")


def storable_text(error: str) -> str:
    """An error text that every store accepts: valid Unicode without NUL, and not too long."""
    return error.replace("\x00", "?").encode(errors="replace")[:ERROR_LIMIT].decode(errors="ignore")


def storable_log(log: str | None, limit: int = LOG_LIMIT) -> str | None:
    """The last lines of a log that fit into `limit` bytes, as text that every store accepts. None if it is empty."""
    if not log:
        return None
    if len(log) <= limit and log.isascii() and "\x00" not in log:
        return log
    data = log.replace("\x00", "?").encode(errors="replace")
    if len(data) > limit:
        data = data[-limit:]
        _, _, lines = data.partition(b"\n")  # the first line may be cut
        data = lines or data
    return data.decode(errors="ignore")


def dropped_notice(number: int) -> str:
    """The first line of a log whose earlier lines were dropped."""
    return f"({plural(number, 'earlier line')} not kept)\n"


def cut_log(log: str, limit: int) -> str:
    """As `storable_log`, after the number of dropped lines. The number in an earlier notice is included."""
    kept = storable_log(log, limit) or ""
    if len(log.encode(errors="replace")) <= limit:
        return kept
    notice = _NOTICE.match(log)
    dropped, lines = (0, log) if notice is None else (int(notice[1].replace(",", "")), log[notice.end() :])
    fitting = storable_log(lines, limit - MAX_NOTICE_LENGTH) or ""
    dropped += lines.count("\n") - fitting.count("\n")
    return dropped_notice(dropped) + fitting if dropped else kept  # of a single long line the end is kept


def storable_progress_text(text: str | None) -> str | None:
    """The text of a progress report as one line that every store accepts. None if it is empty."""
    if not text:
        return None
    line = " ".join(text.replace("\x00", "?").split())
    return line[:PROGRESS_TEXT_LIMIT].encode(errors="replace").decode() or None


def cut_middle(text: str, limit: int) -> str:
    """At most `limit` bytes of a text, from its beginning and its end."""
    kept = text.encode("utf-8", "replace")
    if len(kept) > limit:
        half = (limit - len(_CUT)) // 2
        kept = kept[:half] + _CUT.encode() + kept[-half:]
    return kept.decode("utf-8", "ignore")
