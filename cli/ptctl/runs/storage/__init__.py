"""Where the run directory of a job lies: on this machine, on a claim that only pods see, or in place of a job."""
