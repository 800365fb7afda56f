"""Write the CRD from the models, for kubectl users and for the chart. `make crds`; a test compares."""

from pathlib import Path

from ptapi.crd.definition import crd_yaml

ROOT = Path(__file__).resolve().parents[1]
NAME = "posttrain.dev_posttrainjobs.yaml"
TARGETS = {
    "manifests/crds": {},
    # Helm would delete the CRD with the release, and the API server every job with the CRD.
    "charts/posttrain/files": {"helm.sh/resource-policy": "keep"},
}


def main() -> None:
    for folder, marks in TARGETS.items():
        path = ROOT / folder / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(crd_yaml(marks))


if __name__ == "__main__":
    main()
