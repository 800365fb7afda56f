"""Images for a cluster: a base image and a directory, pushed to a registry through its API, without a Docker daemon."""
