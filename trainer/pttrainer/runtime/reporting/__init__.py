"""What a run reports: progress, metrics, heartbeats, hangs, how it ended."""
