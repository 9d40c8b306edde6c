"""The schema, as numbered steps from an empty database to the present."""

from qo.sqlite_tables.schema.steps import check_version, migrate

__all__ = ["check_version", "migrate"]
