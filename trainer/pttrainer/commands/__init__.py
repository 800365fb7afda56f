"""Verbs of `python -m pttrainer` beside `run`, one file each: `add_to(commands)` and what it runs."""
