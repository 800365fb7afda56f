"""The contracts of posttrain: the PostTrainJob spec and status, and the run directory.

Everything that two rooms must agree on lives here, and nothing else: operator and trainer never import
each other, they both import this package. It needs pydantic and yaml only, so that a wheel installed
without extras can validate a job.
"""
