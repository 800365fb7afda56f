"""Whose turn it is at chips that several jobs want."""
