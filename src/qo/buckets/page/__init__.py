"""The dashboard as a page in the bucket itself: where it lies, how it gets there, and what opens it."""

from qo.buckets.page.access import Access, obtain
from qo.buckets.page.link import Link, make_link
from qo.buckets.page.place import FOLDER, page_url
from qo.buckets.page.publishing import Published, publish

__all__ = ["FOLDER", "Access", "Link", "Published", "make_link", "obtain", "page_url", "publish"]
