"""The version; a file of its own so that setup.py can read it without importing anything."""

__version__ = "0.1.0"
