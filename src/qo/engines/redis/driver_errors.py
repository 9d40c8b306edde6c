"""Turns the driver's errors into QoErrors that state what to do."""

import redis.exceptions as driver

from qo.errors import NewerFormat, Refused, StorageError

_MISSING_RIGHTS = "this user may not make this call; the rights of each role are in docs/servers.md (Roles in Redis)"
_WRONG_LOGIN = "it rejected the user name or the password"
_ADVICE = (  # by error code
    ("NOREPLICAS", "it has too few replicas to accept a write (min-replicas-to-write); start a replica"),
    ("READONLY", "it is a replica and accepts no writes; name the primary, or use redis+sentinel://"),
    ("LOADING", "it is still loading its data; try again in a moment"),
    ("MASTERDOWN", "it is a replica that lost its primary; try again in a moment"),
    ("OOM", "its memory is full (maxmemory) and nothing of this call was stored; free some, or raise the limit"),
    ("MISCONF", "it cannot write to its disk and accepts no writes; read its log"),
    ("NOAUTH", "it requires a password; write redis://:password@host"),
    ("WRONGPASS", _WRONG_LOGIN),
    ("NOPERM", _MISSING_RIGHTS),
    ("ACL failure in script", _MISSING_RIGHTS),
    ("QOMIGRATE", "it must be migrated before it can be used"),
    ("BUSY", "another client's script blocks it; try again, or run SCRIPT KILL"),
)
_FINAL = ("NOAUTH", "WRONGPASS", "NOPERM", "ACL failure in script")  # a retry gets the same error
_NOT_PRIMARY = ("READONLY", "LOADING", "MASTERDOWN")
_CODES: dict[type[BaseException], str] = {  # the driver removes these codes, except from the errors of a script
    driver.BusyLoadingError: "LOADING",
    driver.MasterDownError: "MASTERDOWN",
    driver.NoPermissionError: "NOPERM",
    driver.OutOfMemoryError: "OOM",
    driver.ReadOnlyError: "READONLY",
}
_NEWER = "QOFORMAT "  # the start of a script's error if the queue has the format of a newer qo


def to_qo_error(shown_url: str, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
    text = _text(error)
    if text.startswith(_NEWER):
        return NewerFormat(f"{shown_url}: {text.removeprefix(_NEWER).partition(' script: ')[0]:.200}")
    if kind is StorageError and (isinstance(error, driver.AuthenticationError) or any(code in text for code in _FINAL)):
        kind = Refused
    advice = next((advice for code, advice in _ADVICE if code in text), _general(error))
    return kind(f"{shown_url}: {advice} ({text.partition(' script: ')[0]:.200})")


def _text(error: BaseException) -> str:
    """The error's text with the code that Redis sent."""
    text = str(error) or type(error).__name__
    code = _CODES.get(type(error), "")
    return text if code in text else f"{code} {text}"


def _general(error: BaseException) -> str:
    if isinstance(error, driver.AuthenticationError):
        return _WRONG_LOGIN
    if isinstance(error, driver.ResponseError):
        return "it refused the call"
    return "the server cannot be reached; check the address, and that the server is running"


def is_not_primary(error: BaseException) -> bool:
    """Whether the server is not, or not yet, the primary. The next call must connect anew."""
    return any(code in _text(error) for code in _NOT_PRIMARY)
