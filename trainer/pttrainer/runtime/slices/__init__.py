"""Supervisors that keep a run of several slices going when one is lost (`accelerator.minSlices`)."""
