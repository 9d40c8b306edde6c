"""The format of the tables that this build writes."""

VERSION = 12  # the number of the last file in `schema/`
ADDITIVE = frozenset({3, 4, 5, 6, 8, 9, 12})  # files there that only add what earlier builds may ignore and keep
