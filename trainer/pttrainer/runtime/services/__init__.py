"""Services of a job, as the trainer reaches them: where they are, which replica is called, and when they are up."""
