"""Is there a queue at a URL? Looking must not create one."""

from urllib.parse import urlsplit

from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.file import check_file
from qo.errors import StorageError
from qo.url_secrets import hide_password


def require_store(url: str) -> None:
    """Refuse to look where nothing is: opening a SQLite file that is missing would make one."""
    if urlsplit(url).scheme == "sqlite" and not check_file(path_of(url)):
        raise StorageError(
            f"there is no queue at {hide_password(url)}; submit a task or start a worker to make one, "
            "or name another with --url or QO_URL"
        )
