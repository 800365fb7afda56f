"""Write the CRD from the models, for kubectl users and for the chart. `make crds`; a test compares."""

from __future__ import annotations

from pathlib import Path

from ptapi.crd.definition import crd_yaml

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("manifests/crds/posttrain.dev_posttrainjobs.yaml", "charts/posttrain/files/posttrain.dev_posttrainjobs.yaml")


def main() -> None:
    for target in TARGETS:
        path = ROOT / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(crd_yaml())


if __name__ == "__main__":
    main()
