"""Types that say in the API's description what the model will check.

A description only: the sentence a caller gets is the model's own.
"""

from typing import Annotated, Any

from msgspec import Meta


def _said(**schema: Any) -> Meta:
    return Meta(extra_json_schema={"extra": schema})


Name = Annotated[str, _said(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
TypeName = Annotated[str, _said(pattern="^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,254}$")]
Seconds = Annotated[float, _said(exclusiveMinimum=0, maximum=3_200_000_000)]
Retries = Annotated[int, _said(minimum=0, maximum=10_000)]
Attempts = Annotated[int, _said(minimum=1, maximum=10_000)]
Key = Annotated[str, _said(minLength=1, maxLength=256)]
Instant = Annotated[str, _said(format="date-time")]
Rate = Annotated[float, _said(minimum=0)]
