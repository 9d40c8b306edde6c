"""How long an idle worker leaves the store alone: the dearer a look, the longer.

A look at a file or a server nearby takes a millisecond; one at a cloud takes twenty-five, and is billed. What a look
takes is known by looking, so no engine has to say what it is.
"""

_TIMES = 2400  # as long as the look took


def rest(took: float, shortest: float, longest: float) -> float:
    return min(longest, max(shortest, _TIMES * took))
