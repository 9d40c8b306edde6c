from tests.worker.conftest import bench, client

__all__ = ["bench", "client"]  # fixtures
