"""What is requested: the cluster as a checked value, every request that makes it, and the same for Terraform. Pure."""
