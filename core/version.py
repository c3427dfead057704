"""The version, in one place: the package, its metadata and every file that names it take it from here."""

__version__ = "0.1.0"
