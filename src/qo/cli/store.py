"""Is there a queue at a URL? Reading commands must not create one."""

from qo.engines import is_missing
from qo.errors import StorageError
from qo.url_secrets import hide_password


def require_store(url: str) -> None:
    """Raise StorageError where opening the store to read it would create it."""
    if is_missing(url):
        raise StorageError(
            f"there is no queue at {hide_password(url)}; submit a task or start a worker to make one, "
            "or name another with --url or QO_URL"
        )
