"""PostTrainJobs on a cluster: find, build from flags or files, list, wait, suspend, delete."""
