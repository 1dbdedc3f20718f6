"""The version of the distribution; pyproject.toml has the same."""

__version__ = "0.1.0"
