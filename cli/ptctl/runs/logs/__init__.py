"""Logs of a job: its ranks in the pods of a cluster, their lines, and their address in Cloud Logging."""
