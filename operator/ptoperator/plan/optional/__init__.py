"""What is kept beside a job, without which it runs as well: small plans of their own."""
