"""The base of every spec model: frozen, no unknown keys, camelCase outside and snake_case inside."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel


class SpecModel(BaseModel):
    """A part of a PostTrainJob: immutable; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
    )


def by_key(key: str) -> dict[str, JsonValue]:
    """Return the schema of a list keyed by `key`: the API server merges entries by it and refuses duplicates."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


BUCKET = (
    "([a-z0-9][-a-z0-9_]{1,61}[a-z0-9]"
    r"|[a-z0-9]([-a-z0-9_]{0,61}[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)*\.([a-z0-9_][-a-z0-9_]{0,61})?[a-z0-9])"
)
"""A bucket's name: without dots, or with dots."""


def _segment(but: str = "") -> str:
    """Return the pattern of a step of a path: not . or .., no white space at its ends; but: forbidden characters."""
    rest = rf"([^/{but}]*[^/{but}\s])?"
    return rf"([^/.{but}\s]{rest}|\.[^/.{but}\s]{rest}|\.\.[^/{but}\s]{rest})"


def _stored(segment: str) -> str:
    """Return the pattern of a directory or file in a bucket, or on a file system."""
    return rf"(gs://{BUCKET}(/{segment})*/?|file://(/{segment})+/?)"


_FILE = rf"(gs://{BUCKET}|file://)(/{_segment()})+"


_HUB_NAME = "[A-Za-z0-9][-A-Za-z0-9._]*"
_HUB_MODEL = f"hf://{_HUB_NAME}/{_HUB_NAME}"
_HOST = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])"
_IMAGE_NAME = "[a-z0-9]+([._-]+[a-z0-9]+)*"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DATA_URI = rf"^({_stored(_segment())}|hf://datasets/{_HUB_NAME}/{_HUB_NAME}(/{_segment()})*/?)$"
OUTPUT_URI = rf"^{_stored(_segment(r'*?#'))}$"
FILE_URI = f"^{_FILE}$"
CODE_URI = rf"^{_FILE}\.py$"
MODEL_URI = rf"^({_HUB_MODEL}|{_stored(_segment())}|random://[a-z0-9][-a-z0-9.]*)$"
ADAPTER_URI = rf"^({_HUB_MODEL}|{_stored(_segment())})$"
HTTP_URL = rf"^https?://{_HOST}(:[0-9]{{1,5}})?(/[^\s?#]*)?$"
IMAGE = (
    rf"^([A-Za-z0-9.-]+(:[0-9]+)?/)?{_IMAGE_NAME}(/{_IMAGE_NAME})*"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
GYMNASIUM_ID = r"^([A-Za-z_][A-Za-z0-9_.]*:)?([-A-Za-z0-9_]+/)?[-A-Za-z0-9_.]+$"
VERIFIERS_ID = r"^([A-Za-z0-9][-A-Za-z0-9_.]*/)?[A-Za-z_][-A-Za-z0-9_]*$"
PACKAGE = r"^[A-Za-z0-9][-A-Za-z0-9._]*(\[[-A-Za-z0-9._,]+\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*$"
REVISION = r"^[A-Za-z0-9][-A-Za-z0-9._/]*$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
ABSOLUTE_PATH = r"^(/([^/.:\s][^/:\s]*|\.[^/.:\s][^/:\s]*|\.\.[^/:\s]+))+$"

# Every string, list and map is bounded: the API server refuses CEL rules over unbounded values.
Name = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
DataUri = Annotated[str, StringConstraints(max_length=1024, pattern=DATA_URI)]
OutputUri = Annotated[str, StringConstraints(max_length=1024, pattern=OUTPUT_URI)]
FileUri = Annotated[str, StringConstraints(max_length=1024, pattern=FILE_URI)]
CodeUri = Annotated[str, StringConstraints(max_length=1024, pattern=CODE_URI)]
ModelUri = Annotated[str, StringConstraints(max_length=1024, pattern=MODEL_URI)]
AdapterUri = Annotated[str, StringConstraints(max_length=1024, pattern=ADAPTER_URI)]
DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
DnsName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_NAME)]
QueueName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_NAME)]
"""Kueue's names are labels' values, too."""
HttpUrl = Annotated[str, StringConstraints(max_length=1024, pattern=HTTP_URL)]
AcceleratorType = Annotated[str, Field(min_length=3, max_length=32, pattern=r"^[a-z0-9][a-z0-9-]*$")]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=REVISION)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
AbsolutePath = Annotated[str, StringConstraints(max_length=1024, pattern=ABSOLUTE_PATH)]
EnvName = Annotated[str, StringConstraints(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Code = Annotated[str, StringConstraints(min_length=1, max_length=131_072)]
GymnasiumId = Annotated[str, StringConstraints(max_length=256, pattern=GYMNASIUM_ID)]
VerifiersId = Annotated[str, StringConstraints(max_length=256, pattern=VERIFIERS_ID)]
PinnedPackage = Annotated[str, StringConstraints(max_length=256, pattern=PACKAGE)]
PythonName = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
NonNegativeInt = Annotated[int, Field(ge=0, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
LearningRate = Annotated[float, Field(ge=1e-12, le=10.0)]
"""A smaller rate moves no weight in float32."""


class PythonCode(SpecModel):
    """Python of your own: exactly one of `uri` and `code`."""

    uri: CodeUri | None = None
    """The Python file: `file:///…` where the trainer runs, for example from a ConfigMap in `volumes`, or `gs://…`."""
    code: Code | None = None
    """The text of the Python file. `posttrain.PostTrainJob` writes it for a function of Python."""
