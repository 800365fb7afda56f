"""The pods of a job: the program in them, its variables and resources, and what `spec.pod` overrides."""
