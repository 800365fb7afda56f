"""What posttrain needs inside a cluster: looked at, installed and examined, through the Kubernetes API alone.

`chart.yaml` is the chart as Helm renders it, written by `make crds` and held equal by a test, so that there is one
source and no Helm on the machine.
"""
