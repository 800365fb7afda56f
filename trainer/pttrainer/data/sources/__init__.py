"""Data files: found, fetched and read."""
