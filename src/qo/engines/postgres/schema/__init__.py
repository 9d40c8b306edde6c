"""The schema: one numbered SQL file per version, and their application."""

from qo.engines.postgres.schema.steps import prepare, version_of
from qo.engines.postgres.version import VERSION

__all__ = ["VERSION", "prepare", "version_of"]
