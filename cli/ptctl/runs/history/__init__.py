"""What happened to a job: Kubernetes' events, and its life as a timeline."""
