"""The schema, as numbered steps from an empty file to the present."""

from qo.engines.sqlite.schema.steps import prepare, schema_of

__all__ = ["prepare", "schema_of"]
