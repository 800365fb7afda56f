"""Data files: find, fetch and read them."""
