"""The schema, as numbered migrations."""

from qo.sqlite_tables.schema.steps import check_version, migrate

__all__ = ["check_version", "migrate"]
