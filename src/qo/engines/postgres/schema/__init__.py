"""The schema, as numbered steps from nothing to the present."""

from qo.engines.postgres.schema.steps import prepare, version_of
from qo.engines.postgres.version import VERSION

__all__ = ["VERSION", "prepare", "version_of"]
