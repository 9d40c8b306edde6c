"""Parses `postgresql://user@host/database?schema=qo`."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from qo.errors import InvalidSetting

_DEFAULT_SCHEMA = "qo"
_UNKNOWN_OPTION = re.compile(r'invalid URI query parameter: "([^"]*)"')
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
# Detect a server that stopped responding within 30 s. TCP's own timeout is about 15 minutes.
_DEFAULTS = {
    "connect_timeout": 10,  # seconds
    "keepalives_idle": 10,  # seconds
    "keepalives_interval": 5,  # seconds
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


class PostgresAddress(NamedTuple):
    conninfo: str  # for libpq; contains the password, so it must not be logged
    schema: str
    shown_url: str  # without credentials

    def __repr__(self) -> str:
        return f"<Address {self.shown_url}>"

    @property
    def channel(self) -> str:
        """The channel of NOTIFY for this schema."""
        return f"qo:{self.schema}"


def address_of(url: str) -> PostgresAddress:
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    schema = dict(options).get("schema", _DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidSetting(
            f"schema={schema!r} is not a name: write lower-case letters, digits and _, beginning with a letter or _"
        )
    rest = urlencode([(name, value) for name, value in options if name != "schema"])
    try:
        given = conninfo_to_dict(f"{base}?{rest}" if rest else base)
    except psycopg.ProgrammingError as error:
        # Not chained, because libpq may quote the URL with its password.
        option = _UNKNOWN_OPTION.search(str(error))
        is_name = (
            option is not None and option[1].isidentifier()
        )  # otherwise it may be part of a password whose ? is not encoded
        problem = (
            f"there is no option {option[1]!r}" if option and is_name else "write postgresql://user@host:5432/database"
        )
        raise InvalidSetting(f"not a Postgres URL: {problem}; options are `schema` and those of libpq") from None
    place = f"{given.get('host') or 'localhost'}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
    return PostgresAddress(make_conninfo("", **_DEFAULTS | given), schema, f"postgresql://{place}")
