"""The verbs of `ptctl workload` that change a job, or wait for one to change."""
