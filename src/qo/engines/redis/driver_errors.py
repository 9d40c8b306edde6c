"""The driver's errors as sentences a user can act on."""

import redis.exceptions as driver

from qo.errors import NewerFormat, Refused, StorageError

_RIGHTS = "this user may not do this; the rights of each role are in docs/servers.md (Roles in Redis)"
_ADVICE = (
    ("NOREPLICAS", "it has too few replicas to take a write (min-replicas-to-write); bring a replica back"),
    ("READONLY", "it is a replica and takes no writes; name the primary, or use redis+sentinel://"),
    ("LOADING", "it is still loading its data; try again in a moment"),
    ("MASTERDOWN", "it is a replica that lost its primary; try again in a moment"),
    ("OOM", "its memory is full (maxmemory) and nothing of this call was kept; free some, or raise the limit"),
    ("MISCONF", "it cannot write to its disk and takes no writes; look at its log"),
    ("NOAUTH", "it wants a password; write redis://:password@host"),
    ("WRONGPASS", "it does not know this user and password"),
    ("NOPERM", _RIGHTS),
    ("ACL failure in script", _RIGHTS),
    ("BUSY", "another client's script keeps it busy; try again, or run SCRIPT KILL"),
)
_FINAL = ("NOAUTH", "WRONGPASS", "NOPERM", "ACL failure in script")  # however often it is asked
_MOVED_ON = ("READONLY", "LOADING", "MASTERDOWN")
_CODES: dict[type[BaseException], str] = {  # the driver takes these off the text, but not where a script passes it on
    driver.BusyLoadingError: "LOADING",
    driver.MasterDownError: "MASTERDOWN",
    driver.NoPermissionError: "NOPERM",
    driver.OutOfMemoryError: "OOM",
    driver.ReadOnlyError: "READONLY",
}
_NEWER = "QOFORMAT "  # how the answer of a script begins that found the queue of a newer qo


def to_qo_error(shown: str, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
    text = _text(error)
    if text.startswith(_NEWER):
        return NewerFormat(f"{shown}: {text.removeprefix(_NEWER).partition(' script: ')[0]:.200}")
    if kind is StorageError and (isinstance(error, driver.AuthenticationError) or any(code in text for code in _FINAL)):
        kind = Refused
    advice = next((advice for code, advice in _ADVICE if code in text), _general(error))
    return kind(f"{shown}: {advice} ({text.partition(' script: ')[0]:.200})")


def _text(error: BaseException) -> str:
    """With the code that Redis sent."""
    text = str(error) or type(error).__name__
    code = _CODES.get(type(error), "")
    return text if code in text else f"{code} {text}"


def _general(error: BaseException) -> str:
    if isinstance(error, driver.AuthenticationError):
        return "it does not know this user and password"
    if isinstance(error, driver.ResponseError):
        return "it refused the call"
    return "it cannot be reached; check that it runs, and the address"


def has_moved_on(error: BaseException) -> bool:
    """This server is not, or not yet, the one to talk to: the next call connects afresh."""
    return any(code in _text(error) for code in _MOVED_ON)
