"""Compile the job's programs for chips that are not here."""
