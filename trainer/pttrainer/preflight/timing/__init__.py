"""Time of a step: roofline, collectives, rollouts."""
