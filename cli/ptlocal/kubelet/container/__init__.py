"""Containers as local processes: command, environment, volumes."""
