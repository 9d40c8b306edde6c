"""`postgresql://user@host/database?schema=qo` as what libpq wants, and as what may be shown."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from qo.errors import InvalidSetting

SCHEMA = "qo"
_UNKNOWN = re.compile(r'invalid URI query parameter: "([^"]*)"')
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
# A peer that fell silent is noticed within half a minute, not after TCP's own quarter of an hour.
_WATCHFUL = {
    "connect_timeout": 10,  # seconds
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds: libpq wants it so
}


class PostgresAddress(NamedTuple):
    conninfo: str  # holds the password: never shown
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def channel(self) -> str:
        """Where this schema's news are told."""
        return f"qo:{self.schema}"


def address_of(url: str) -> PostgresAddress:
    place, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    schema = dict(options).get("schema", SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidSetting(f"schema={schema!r} is not a name: lower case letters, digits and _, and a letter first")
    rest = urlencode([(name, value) for name, value in options if name != "schema"])
    try:
        given = conninfo_to_dict(f"{place}?{rest}" if rest else place)
    except psycopg.ProgrammingError as error:
        # Not its cause: libpq may quote the address, password and all.
        option = _UNKNOWN.search(str(error))
        is_name = option is not None and option[1].isidentifier()  # or part of a password whose ? is not encoded
        wrong = (
            f"there is no option {option[1]!r}" if option and is_name else "write postgresql://user@host:5432/database"
        )
        raise InvalidSetting(f"not a Postgres address: {wrong}; options are `schema` and those of libpq") from None
    shown = f"{given.get('host') or 'localhost'}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
    return PostgresAddress(make_conninfo("", **_WATCHFUL | given), schema, f"postgresql://{shown}")
