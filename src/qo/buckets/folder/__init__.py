"""A bucket in a directory, safe for concurrent processes and across power failures."""

from qo.buckets.folder.bucket import FolderBucket

__all__ = ["FolderBucket"]
