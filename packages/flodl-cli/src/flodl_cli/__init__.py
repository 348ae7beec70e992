"""fdl: the command line of floDl. Imports no torch."""

__version__ = "0.1.0"
