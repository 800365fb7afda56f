"""What the operator shows of itself: Prometheus metrics, health endpoints, logging."""
