"""What is requested: a job from flags, from a file, from another job, and one field of it set."""
