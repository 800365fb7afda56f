"""The contracts of posttrain: the PostTrainJob spec and status, and the run directory.

Operator and trainer never import each other; both import this package, which holds everything that they must agree
on and nothing else. It needs only pydantic and yaml, so that a wheel installed without extras can validate a job.
"""
