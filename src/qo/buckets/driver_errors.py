"""Maps obstore's errors to qo's. Status and code are parsed from the message: the driver does not expose them.

StorageError, Refused and Conflict mean that a write was not applied. OutcomeUnknown means that it may have been.
"""

import re

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from qo.buckets.address import BucketAddress
from qo.errors import Conflict, ObjectTooLarge, OutcomeUnknown, QoError, Refused, StorageError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NOT_CONNECTED = re.compile(r"\bkind: Connect\b")  # not ConnectionReset, which ends a request in progress
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
_WRITE_CONFLICT_CODES = {"ConditionalRequestConflict", "OperationAborted"}
_CREDENTIAL_CODES = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "InvalidToken",
    "ExpiredToken",
}
_SIZE_CODES = {"EntityTooLarge", "RequestBodyTooLarge", "MaxMessageLengthExceeded"}
_TOO_LARGE = 413
_SERVER_ERRORS = 500
_TOO_MANY = 429
_CONFLICT = 409


class Busy(StorageError):
    """The store did not process the write: it has another write of the same key in progress, or too many requests."""


def is_missing_key(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError) and _code(str(error)) not in _NO_BUCKET_CODES


def to_qo_error(error: BaseException, address: BucketAddress, key: str, *, writing: bool) -> QoError:
    """Return the error to raise for one of the driver's."""
    text = _message(error)
    status, code = _status(text), _code(text)
    if code in _NO_BUCKET_CODES:
        return Refused(f"there is no bucket {address.bucket!r}{_at(address)}; create it, or check the name")
    if status == _TOO_MANY or (status == _CONFLICT and code in _WRITE_CONFLICT_CODES):
        return Busy(f"{address} is busy with other writes of {key}; try again")
    if writing and isinstance(error, AlreadyExistsError | PreconditionError):
        return Conflict(f"{key} was written by another process")
    if status in (401, 403):
        return Refused(_denied(code, address))
    if status == _TOO_LARGE or code in _SIZE_CODES:
        return ObjectTooLarge(
            f"{address} refuses {key} because of its size; submit fewer tasks in one call, or raise its limit"
        )
    return _transport_error(error, address, status, writing=writing)


def _transport_error(error: BaseException, address: BucketAddress, status: int | None, *, writing: bool) -> QoError:
    """After a timeout, a reset or a server error a write may have been applied, or may still be."""
    text = _message(error)
    if _NOT_CONNECTED.search(str(error)):
        return StorageError(f"{address} cannot be reached{_at(address)}; check the network and the endpoint")
    if "Received redirect" in text or status in (301, 307):
        return Refused(f"{address} is in another region than {address.region}; add ?region=… to the URL")
    if writing and isinstance(error, BaseError) and (status is None or status >= _SERVER_ERRORS):
        return OutcomeUnknown(f"{address} did not confirm the write: {_short(text)}")
    return StorageError(f"{address} did not respond: {_short(text)}")


def _denied(code: str | None, address: BucketAddress) -> str:
    if code == "RequestTimeTooSkewed":
        return f"{address} refuses requests because this machine's clock is wrong; set it"
    if code in _CREDENTIAL_CODES:
        return f"{address} does not accept the credentials ({code}); check AWS_ACCESS_KEY_ID and its secret, or log in"
    return f"these credentials may not do this in {address}; see qo bucket-setup --print-policy"


def _message(error: BaseException) -> str:
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
