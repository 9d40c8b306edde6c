"""Groups: the tasks of a type that share one value of an argument, such as all tasks of one customer.

A group has its own limits and its own turn. It is stored as the first of the task's needs, after a mark that no
capability starts with. So it is part of the task's lane in every store, claims do not read tasks of full groups, and an
older build without groups does not claim these tasks.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote, unquote

import msgspec

from qo.errors import InvalidTask
from qo.model.text import is_a, show

GROUP_MARK = "!"  # sorts before the names of capabilities
_MAX_GROUP_LENGTH = 160  # characters; longer values are hashed
_HASH_LENGTH = 32  # hex digits
_SAFE = "=:._-@/+,"  # with letters and digits: characters that are not escaped
_MISSING = "%"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}=[A-Za-z0-9%=:._@/+,~-]{0,160}")


def make_group(key: str, value: object) -> str:
    """The group of tasks whose argument `key` has this value: `customer_id=42`.

    A string and a number may share a group.
    """
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
    group = f"{key}={quote(text, safe=_SAFE, errors='replace')}"
    if len(group) > _MAX_GROUP_LENGTH:
        group = f"{key}=sha256:{sha256(text.encode(errors='surrogatepass')).hexdigest()[:_HASH_LENGTH]}"
    return group


def missing_group(key: str) -> str:
    """The group of tasks without the argument `key`. No value gives this text, because `%` is escaped."""
    return f"{key}={_MISSING}"


def check_group(field: str, group: str) -> str:
    if not is_a(group, str) or not _GROUP.fullmatch(group):
        raise InvalidTask(field, f"{show(group)} is not an argument and its value, such as customer_id=42")
    return group


def parse_group(field: str, text: str) -> str:
    """The group that a person names: `customer=Zoë & Söhne`. A group as `make_group` writes it stays as it is."""
    key, sign, value = text.partition("=")
    is_escaped = _GROUP.fullmatch(text) or not (sign and _KEY.fullmatch(key))
    return check_group(field, text if is_escaped else make_group(key, value))


def shown_group(group: str) -> str:
    """A group as it is shown to users."""
    if group.endswith(f"={_MISSING}"):
        return f"no {group.partition('=')[0]}"
    return unquote(group)


def with_group(needs: Sequence[str], group: str | None) -> tuple[str, ...]:
    """The needs as a store keeps them."""
    return tuple(needs) if group is None else (f"{GROUP_MARK}{group}", *needs)


def group_in(stored_needs: Sequence[str]) -> str | None:
    """The group among the needs that a store keeps."""
    return stored_needs[0][1:] if stored_needs and stored_needs[0][:1] == GROUP_MARK else None


def regrouped(stored_needs: tuple[str, ...], group: str) -> tuple[str, ...]:
    """The needs that a store keeps, with another group."""
    return with_group(without_group(stored_needs), group)


def without_group(stored_needs: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities among the needs that a store keeps."""
    return stored_needs[1:] if stored_needs and stored_needs[0][:1] == GROUP_MARK else stored_needs


def group_key(type: str, group: str) -> str:
    """The key of a group in the limits of a claim: a group belongs to a type. Neither contains a space."""
    return f"{type} {group}"


def type_of_key(key: str) -> str:
    """The type in a `group_key`."""
    return key.partition(" ")[0]
