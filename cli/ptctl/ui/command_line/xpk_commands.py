"""Commands of XPK, gcluster and kubectl that do not exist here, and what to type instead.

Kept out of the help but for one line. A key of two words (`job submit`) is preferred to its first word alone. Each
answer is one line, and names a command that exists.
"""

_VOLUMES = "add `volumes` to the job file and submit it with `ptctl workload create -f job.yaml`"
_QUEUE = "`ptctl workload list` shows all jobs, `ptctl cluster queue` those that wait"
_CANCEL = "`ptctl workload suspend NAME` keeps the job; `ptctl workload delete NAME` removes it"
_DEFAULTS = (
    "`ptctl config set PROPERTY VALUE`, for context, namespace, project and more; `ptctl config list` shows them"
)
_LOCAL = "`ptctl local up` runs a cluster on this machine, without Docker"
_CREATE = "`ptctl workload create -f job.yaml`, or with flags: `ptctl workload create --help`"

ROOT: dict[str, str] = {
    "storage": _VOLUMES,
    "storage list": "`ptctl workload get NAME -o yaml` shows a job's `volumes`",
    "storage delete": "nothing is shared between jobs: `ptctl workload delete NAME` takes a job's volumes with it",
    "storage detach": "leave `volumes` out of the job file: `ptctl workload create -f job.yaml`",
    "inspector": "`ptctl cluster doctor` examines the cluster, `ptctl cluster doctor JOB` one job",
    "info": "`ptctl cluster quota` shows Kueue's quotas, `ptctl cluster queue` who waits",
    "kind": _LOCAL,
    "kind create": _LOCAL,
    "kind delete": "`ptctl local reset` removes the cluster of `ptctl local up`",
    "kind list": "`ptctl local status`",
    "batch": _CREATE,
    "run": "`ptctl workload create -f job.yaml`, then `ptctl workload logs NAME -f`; without a cluster `ptctl train`",
    "shell": "`ptctl workload exec NAME -i -t bash` is one in a job; a notebook: `ptctl workload connect --help`",
    "job": "`ptctl workload --help` lists the verbs on jobs",
    "job submit": _CREATE,
    "job list": _QUEUE,
    "job ls": _QUEUE,
    "job logs": "`ptctl workload logs NAME -f`",
    "job info": "`ptctl workload describe NAME`",
    "job inspect": "`ptctl workload describe NAME`, `ptctl cluster doctor NAME`",
    "job cancel": _CANCEL,
    "job delete": "`ptctl workload delete NAME`",
    "job config": _DEFAULTS,
    "jobs": "`ptctl workload list`",
    "apply": "`ptctl workload create -f job.yaml`",
    "up": "`ptctl local up`",
    "down": "`ptctl local down`",
    "help": "`ptctl --help`, `ptctl workload create --help`",
    "doctor": "`ptctl cluster doctor`, and `ptctl cluster doctor JOB` for one job",
}
"""Commands beside `ptctl workload`, and groups of XPK and gcluster."""

WORKLOAD: dict[str, str] = {
    "create-pathways": "`ptctl workload create … --set pathways.enabled=true`",
    "submit": "`ptctl workload create`",
    "apply": "`ptctl workload create -f job.yaml`",
    "cancel": _CANCEL,
    "stop": "`ptctl workload suspend NAME`",
    "status": "`ptctl workload describe NAME`",
    "ls": "`ptctl workload list`",
    "rm": "`ptctl workload delete NAME`",
    "log": "`ptctl workload logs NAME`",
    "validate": "`ptctl validate -f job.yaml`",
    "train": "`ptctl train -f job.yaml`",
    "top": "`ptctl top`",
}

CLUSTER: dict[str, str] = {
    "create-pathways": "`ptctl cluster create NAME --enable-pathways`",
    "create-ray": "posttrain needs no Ray: `ptctl cluster create NAME`",
    "cacheimage": "nodes keep the images of their jobs: `ptctl workload create --docker-image IMAGE`",
    "get-credentials": "`ptctl cluster credentials NAME`",
    "status": "`ptctl cluster describe NAME`",
    "rm": "`ptctl cluster delete NAME`",
    "ls": "`ptctl cluster list`",
    "top": "`ptctl top`",
}
