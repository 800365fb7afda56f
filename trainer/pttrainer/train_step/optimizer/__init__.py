"""Optimizers: update rules, schedules, frozen parts, averages, where their state lives."""
