"""Verbs on the run itself: its output, its files, its processes."""
