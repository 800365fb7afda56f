"""Other tools' command lines and documents, read into PostTrainJobs; nothing of them is run."""
