"""Verbs that submit a job: from flags or a file, rendered only, or from another job."""
