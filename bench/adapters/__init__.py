"""All adapters by name. To add a system: write one Adapter subclass and list it here."""

from __future__ import annotations

from peerbench.base import Adapter

from adapters import objects, postgres, qo, redis, sqlite

ADAPTERS: dict[str, type[Adapter]] = {
    cls.name: cls for module in (redis, postgres, sqlite, objects, qo) for cls in module.ADAPTERS
}
