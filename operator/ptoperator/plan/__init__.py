"""What to do about one job: from what was observed to actions and a status, by the steps of `job_plan`. Pure."""
