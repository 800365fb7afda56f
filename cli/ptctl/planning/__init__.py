"""`ptctl plan`: the trainer's preflight as a child process, fits, matrices, prices."""
