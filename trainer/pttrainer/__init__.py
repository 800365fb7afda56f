"""The trainer: what runs in the pods. `python -m pttrainer run job.yaml` works without a cluster, too."""
