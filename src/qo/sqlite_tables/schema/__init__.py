"""The schema, as numbered migrations."""

from qo.sqlite_tables.schema.steps import add_missing_indexes, check_version, migrate

__all__ = ["add_missing_indexes", "check_version", "migrate"]
