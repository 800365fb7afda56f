"""YAML of other kinds, as jobs: JobSets, PathwaysJobs, TrainJobs; `object_reader` takes the objects apart."""
