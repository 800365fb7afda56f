"""The JobSet definition that the embedded cluster starts with, so that no download is needed.

`jobset_crd.yaml` has all of it but the job template's spec, which comes from the built-in schemas. A user may install
the public definition over it, which is then kept.
"""

from pathlib import Path
from typing import Any

import yaml

from ptlocal.apiserver.kinds import builtin_schemas

Schema = dict[str, Any]


def definition() -> Schema:
    """Return the JobSet CRD."""
    crd: Schema = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    template = spec["replicatedJobs"]["items"]["properties"]["template"]["properties"]
    job_spec = _for_crd(builtin_schemas.expanded("JobSpec"))
    job_spec["properties"] |= template["spec"]["properties"]
    job_spec["properties"]["template"]["properties"]["metadata"] = template["metadata"]
    template["spec"] = job_spec
    return crd


def _for_crd(schema: Schema) -> Schema:
    """Remove the strategic-merge hints, which only built-in kinds may have, and require every list key."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-patch-")}
    if "properties" in made:
        made["properties"] = {name: _for_crd(child) for name, child in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = _for_crd(made[key])
    for key in made.get("x-kubernetes-list-map-keys") or []:
        if key not in made["items"].get("required", []):
            made["items"]["properties"][key].setdefault("default", "")
    return made
