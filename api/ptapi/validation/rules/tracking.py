"""Rules for experiment trackers: what they write into a run directory needs a folder."""

from ptapi.validation.predicate import equals, has, starts_with, unset
from ptapi.validation.rule import SPEC, Rule
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE

_IS_FOLDER = starts_with("output.uri", "file://")

RULES: tuple[Rule, ...] = (
    SPEC.rule(
        "tracking",
        "unset, or together with posttrain's own trainer: another program reports by itself",
        unset("tracking") | IS_NATIVE,
        "set the tracker up in runtime",
    ),
    SPEC.rule(
        "tracking.wandb.mode",
        "online, or offline together with a file:// output.uri, where wandb sync finds the run",
        unset("tracking") | unset("tracking.wandb") | equals("tracking.wandb.mode", "online") | _IS_FOLDER,
    ),
    SPEC.rule(
        "tracking.trackio.spaceId",
        "a Space, org/name; it may be unset where output.uri is file://",
        unset("tracking") | unset("tracking.trackio") | has("tracking.trackio.spaceId") | _IS_FOLDER,
        "spaceId: my-org/my-dashboard",
    ),
)
