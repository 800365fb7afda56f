"""Controllers of the embedded cluster: Job, JobSet, garbage collector, scheduler."""
