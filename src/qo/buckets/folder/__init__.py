"""A bucket in a directory: safe between processes and after a power cut."""

from qo.buckets.folder.bucket import FolderBucket

__all__ = ["FolderBucket"]
