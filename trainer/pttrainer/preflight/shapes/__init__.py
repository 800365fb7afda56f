"""Shapes of a job: arrays, devices, topologies, rollouts."""
