"""The job's pods: the program in them, variables and volumes, amounts, and overrides in Kubernetes' names."""
