"""The embedded cluster's API server: enough of Kubernetes for kubectl, the Python client, kopf and our controllers.

Run it with `python -m ptlocal.apiserver --data DIR --port N --kubeconfig FILE`. It listens only on 127.0.0.1, over
TLS with a certificate of its own, for one bearer token. State is one SQLite file under DIR.

Where to look, from the outside in:

    __main__, errors, write_options   start, error responses, parameters of a write
    http/       routes, handlers, bodies, watch streams, pod logs, discovery, OpenAPI, TLS, kubeconfig
    writes/     create, update, PATCH, server-side apply, deletion, and field ownership (managedFields)
    rules/      defaults and checks of built-in kinds beyond their schema
    schema/     pruning, defaulting, validation, CEL
    kinds/      the served kinds; builtin.json is generated
    output/     JSON, tables, printer columns
    storage/    the store, lists, selectors, watches
    backend, jobset_crd               state and housekeeping, the JobSet definition

The one idea: everything runs in one thread, and nothing awaits between reading an object and storing it, so each
write is atomic without locks.

Left out on purpose, because it exists for laptops and tests:

- users, roles, quotas, admission webhooks and policies: the token allows everything; RBAC objects are stored and not
  enforced. A pod whose ServiceAccount is missing is refused, as a cluster does;
- controllers: garbage collection, jobs, JobSets and pods are ordinary clients. One exception: it empties namespaces and
  definitions that are being deleted. Deployments, disruption budgets and network policies are stored without effect;
- conversion between versions of a custom resource (all versions have the same fields), and writing through /scale;
- exec, attach, port-forward, proxy; metrics beyond a few counters;
- lists at an exact older resourceVersion, and pages that show one moment: later pages show objects as they are now;
- retention by age: the last 20,000 changes can be replayed, older versions get a 410; events never expire;
- descriptions of built-in kinds (`kubectl explain` shows their fields without text), duplicate keys in JSON;
- durability against a power cut: an acknowledged write survives kill -9 at any moment, but the last ones may not
  survive a power cut.
"""
