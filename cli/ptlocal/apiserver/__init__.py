"""The embedded cluster's API server: enough of Kubernetes for kubectl, the Python client, kopf and our controllers.

Run it with `python -m ptlocal.apiserver --data DIR --port N --kubeconfig FILE`. It listens on 127.0.0.1 alone, over
TLS with a certificate of its own, for one bearer token. State is one SQLite file under DIR.

Where to look, from the outside in:

    __main__, server, tls, kubeconfig      start, HTTP, errors, credentials
    routes, handlers, subresources         what a path means; one function per verb
    bodies, protobuf, options              what a request carries
    reading, watching, streaming           get, list, watch
    writing, checking, deleting, rules/    what a write does and what it refuses
    patching, patches, applying            PATCH; fieldpaths and managedfields: who owns what
    pruning, defaulting, validation, cel/  schemas
    kinds, registry, crds, jobset_crd      what is served; builtin.json and protobuf.json are generated
    presenting, tables, printers           answers; discovery and openapi describe the server
    store, cluster, sweeper, podlogs       state, housekeeping, logs

The one idea: everything runs in one thread, and nothing awaits between reading an object and storing it, so each
write is atomic without locks.

Left out on purpose, because it exists for laptops and tests:

- users, roles, quotas, admission webhooks and policies: whoever holds the token may do everything; RBAC objects are
  stored and not enforced;
- controllers: garbage collection, jobs, JobSets and pods are ordinary clients beside it. Two exceptions: it empties
  namespaces and definitions that are being deleted. Deployments, disruption
  budgets and network policies are stored, and nothing carries them out;
- conversion between versions of a custom resource (all versions have the same fields), and writing through /scale;
- exec, attach, port-forward, proxy; metrics beyond a few counters;
- lists at an exact older resourceVersion, and pages that show one moment: later pages show objects as they are now;
- retention by age: the last 20,000 changes can be replayed, older versions are answered with 410; events never expire;
- descriptions of built-in kinds (`kubectl explain` shows their fields without text), duplicate keys in JSON;
- durability against a power cut: a write that was acknowledged survives kill -9 at any moment, the last ones may not
  survive the machine.
"""
