"""Verbs on a job file: check it, turn other tools' into one, run it here."""
