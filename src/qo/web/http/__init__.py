"""What all APIs of the server share: access, requests, errors, limits, settings."""
