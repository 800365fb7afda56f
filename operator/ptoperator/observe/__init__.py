"""Observe one job: everything that plan and status need to know, read once per reconcile."""
