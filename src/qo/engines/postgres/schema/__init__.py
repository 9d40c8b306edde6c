"""The schema, as numbered steps from nothing to the present."""

from qo.engines.postgres.schema.steps import VERSION, prepare, version_of

__all__ = ["VERSION", "prepare", "version_of"]
