"""What comes from outside: testing it, quoting it, keeping its text."""

ERROR_LIMIT = 16 * 1024  # bytes of an error's text


def is_a(value: object, *kinds: type) -> bool:
    """Callers send what they like, whatever the annotation says. True is no number."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def show(value: object) -> str:
    """What a caller sent, short enough for a message. Python itself refuses to print an absurdly long integer."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"this {type(value).__name__}"


def keepable(error: str) -> str:
    """An error's text as every store can keep it: Unicode without NUL, and not too long."""
    return error.replace("\x00", "?").encode(errors="replace")[:ERROR_LIMIT].decode(errors="ignore")
