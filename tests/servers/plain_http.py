"""For HTTP clients in tests: httpx reads all certificates of the system for each client, which takes 50 ms."""

import ssl

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the servers of tests speak plain HTTP
