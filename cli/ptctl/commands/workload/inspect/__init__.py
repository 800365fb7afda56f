"""Verbs that show what the API server knows of jobs: spec, status, events."""
