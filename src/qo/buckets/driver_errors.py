"""What a cloud store's refusals mean for a caller. Read from the driver's text: it gives no status otherwise.

A plain StorageError, a Refused and a Conflict say that a write was not done. OutcomeUnknown says that it may have been.
"""

import re

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from qo.buckets.address import BucketAddress
from qo.errors import Conflict, OutcomeUnknown, QoError, Refused, StorageError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ABSENT = {"NoSuchBucket", "ContainerNotFound"}
_RACING = {"ConditionalRequestConflict", "OperationAborted"}
_REFUSED_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "InvalidToken", "ExpiredToken"}
_SERVER_ERRORS = 500
_TOO_MANY = 429
_CONFLICT = 409


class Busy(StorageError):
    """The store would not judge the write now: another of the same key is under way, or too many come at once."""


def is_missing_key(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError) and _code(str(error)) not in _ABSENT


def to_qo_error(error: BaseException, address: BucketAddress, key: str, *, writing: bool) -> QoError:
    """The error qo raises for one of the driver's."""
    text = _words(error)
    status, code = _status(text), _code(text)
    if code in _ABSENT:
        return Refused(f"there is no bucket {address.bucket!r}{_at(address)}; create it, or check the name")
    if status == _TOO_MANY or (status == _CONFLICT and code in _RACING):
        return Busy(f"{address} is busy with other writes of {key}; try again")
    if writing and isinstance(error, AlreadyExistsError | PreconditionError):
        return Conflict(f"{key} was written by someone else")
    if status in (401, 403):
        return Refused(_no_entry(code, address))
    return _no_answer(error, address, status, writing=writing)


def _no_answer(error: BaseException, address: BucketAddress, status: int | None, *, writing: bool) -> QoError:
    """After timeouts, resets and server errors a write may have been done, or may yet be."""
    text = _words(error)
    if "kind: Connect" in str(error):
        return StorageError(f"{address} cannot be reached{_at(address)}; check the network and the endpoint")
    if "Received redirect" in text or status in (301, 307):
        return Refused(f"{address} is in another region than {address.region}; add ?region=… to the URL")
    if writing and isinstance(error, BaseError) and (status is None or status >= _SERVER_ERRORS):
        return OutcomeUnknown(f"{address} did not say whether it took the write: {_short(text)}")
    return StorageError(f"{address} gave no answer: {_short(text)}")


def _no_entry(code: str | None, address: BucketAddress) -> str:
    if code == "RequestTimeTooSkewed":
        return f"{address} refuses requests because this machine's clock is wrong; set it"
    if code in _REFUSED_KEYS:
        return f"{address} does not accept the credentials ({code}); check AWS_ACCESS_KEY_ID and its secret, or log in"
    return f"these credentials may not do this in {address}; see qo bucket-setup --print-policy"


def _words(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source")[0]


def _short(text: str) -> str:
    return " ".join((text.partition("- ")[2] or text)[:200].split())


def _at(address: BucketAddress) -> str:
    return f" at {address.endpoint}" if address.endpoint else ""


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return found[1] if found else None
