"""Settings for connections to databases from a bucket, which others can write."""

import apsw


def ignore_code(db: apsw.Connection) -> None:
    """Treat the content of the database as data: its schema calls no functions, and no trigger or view runs."""
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    db.execute("PRAGMA cell_size_check = ON")  # detects some damage before it is followed
