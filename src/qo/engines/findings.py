"""What an examination of a store finds, under the name engines know it by; buckets, further up, make findings too."""

from qo.findings import Finding

__all__ = ["Finding"]
