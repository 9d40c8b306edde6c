"""What one client may cost the server: sizes, counts and times, each with a default that holds."""

from msgspec import Struct

from qo.errors import InvalidSetting

MEBIBYTE = 1024 * 1024


class ServerLimits(Struct, frozen=True, kw_only=True):
    """Times are in seconds, sizes in bytes."""

    max_connections: int = 1000  # one more, and the connection that waits longest for a request is closed
    max_header_size: int = 32 * 1024  # the request line and all headers
    max_header_count: int = 100
    header_timeout: float = 10.0  # from the connection, or the first byte of a request, to the end of its headers
    idle_timeout: float = 75.0  # between two requests; longer than proxies keep theirs
    request_timeout: float = 120.0  # from the headers to the last byte of the answer; event streams have no end
    max_upload_memory: int = 64 * MEBIBYTE  # bodies of all requests together
    max_unsent_memory: int = 32 * MEBIBYTE  # answers of all requests together that clients have not read

    @property
    def shortest_timeout(self) -> float:
        return min(self.header_timeout, self.idle_timeout, self.request_timeout)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidSetting(f"{name} must be more than 0")
