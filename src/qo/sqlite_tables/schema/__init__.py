"""The schema, as numbered steps from an empty database to the present."""

from qo.sqlite_tables.schema.steps import migrate

__all__ = ["migrate"]
