"""Processes, devices, meshes and shardings."""
