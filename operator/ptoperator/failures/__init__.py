"""Classify failures from pods, nodes and logs. Pure."""
