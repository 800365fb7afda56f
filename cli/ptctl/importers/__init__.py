"""Other tools' command lines and documents, turned into PostTrainJobs; nothing of them is run."""
