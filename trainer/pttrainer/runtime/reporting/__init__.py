"""What a run says of itself: progress, metrics, heartbeats, hangs, how it ended."""
