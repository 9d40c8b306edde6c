"""Values from callers: type checks, quoting in messages, and error texts that every store accepts."""

ERROR_LIMIT = 16 * 1024  # bytes of an error's text


def is_a(value: object, *kinds: type) -> bool:
    """Whether a value has one of these types; a bool is not a number. Callers may ignore annotations."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def show(value: object) -> str:
    """A value for a message, shortened. Python refuses to print very long integers."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"this {type(value).__name__}"


def storable_text(error: str) -> str:
    """An error text that every store accepts: valid Unicode without NUL, and not too long."""
    return error.replace("\x00", "?").encode(errors="replace")[:ERROR_LIMIT].decode(errors="ignore")
