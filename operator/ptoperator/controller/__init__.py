"""Run reconciles: the work queue, leader election, the reconcile itself, the collector of orphaned node pools."""
