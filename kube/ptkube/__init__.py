"""The Kubernetes client: requests, errors, kubeconfig, watches, informers, work queues."""
