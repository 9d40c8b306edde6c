"""The version of this package, where everything below the package itself can import it."""

__version__ = "0.1.0"
