"""Monitoring of the operator: Prometheus metrics, health endpoints, logging."""
