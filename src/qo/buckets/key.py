"""What may be a key. One rule for all buckets, so that none meets a name another could not hold."""

import re

_SEGMENT = r"[0-9A-Za-z_:.-]+"
_KEY = re.compile(rf"(?!.*(?:^|/)\.\.?(?:/|$)){_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_LONGEST = 900  # bytes; S3 and its kin end at 1,024, the bucket's own prefix included
_LONGEST_SEGMENT = 200  # bytes; file systems end at 255


def check_key(key: str) -> str:
    """The key, or ValueError: keys are made by layouts from checked names, so a bad one is a bug of ours."""
    if len(key) > _LONGEST or not _KEY.fullmatch(key) or max(map(len, key.split("/"))) > _LONGEST_SEGMENT:
        raise ValueError(f"{key!r:.100} cannot be a key: segments of [0-9A-Za-z_:.-], not '.' or '..', with / between")
    return key
