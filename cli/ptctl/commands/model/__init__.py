"""Verbs on a trained model: measured, served, or talked to. The trainer does the work, in a child process."""
