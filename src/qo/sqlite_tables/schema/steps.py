"""Bringing a database to the present schema, with any number of processes trying at once."""

from importlib.resources import files

import apsw

from qo.errors import StorageError
from qo.sqlite_tables.header import APPLICATION_ID, VERSION, check_version


def migrate(db: apsw.Connection, place: object) -> None:
    """Create or update the tables."""
    if db.execute("PRAGMA user_version").get == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version, application = db.execute("PRAGMA user_version").get, db.execute("PRAGMA application_id").get
        check_version(place, version)
        if application != APPLICATION_ID and db.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StorageError(f"{place} is a SQLite database of another application; name another file")
        for step in range(version + 1, VERSION + 1):
            db.execute(files("qo.sqlite_tables.schema").joinpath(f"{step:04}.sql").read_text("utf-8"))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
