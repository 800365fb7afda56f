"""Read the cluster, the cloud and the run directory into one frozen value for `plan`."""
