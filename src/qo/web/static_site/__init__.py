"""The dashboard as a static page in the bucket: its location, publishing, credentials and links."""

from qo.web.static_site.credentials import Access, Link, make_link, obtain
from qo.web.static_site.publisher import FOLDER, Published, page_url, publish

__all__ = ["FOLDER", "Access", "Link", "Published", "make_link", "obtain", "page_url", "publish"]
