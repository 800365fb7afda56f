"""Rules for the job as a whole: its name, and the output that others read."""

from ptapi.spec.job import JOB_NAME
from ptapi.validation.predicate import Predicate, has, is_true, matches, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope

RULES: tuple[Rule, ...] = (
    Scope("").rule(
        "metadata.name",
        "lower-case letters, digits and -, starting with a letter, no - at the end (1 to 63 characters)",
        Predicate("self.metadata.name.size() <= 63", lambda job: len(job.metadata.name) <= 63)
        & matches("metadata.name", JOB_NAME),
    ),
    SPEC.rule(
        "tensorboard.server",
        "false, unless output.uri is gs://…, because its pod reads the files from elsewhere",
        ~(has("tensorboard") & has("tensorboard.server") & is_true("tensorboard.server"))
        | starts_with("output.uri", "gs://"),
    ),
)
