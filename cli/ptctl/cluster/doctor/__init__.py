"""What is wrong with a cluster, or keeps a job waiting, each finding with its fix. It changes nothing.

One file per subject; a check is a function from CheckContext to findings. `examine` runs them all, also where one of
them fails.
"""
