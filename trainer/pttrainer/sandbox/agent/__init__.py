"""Code rewards and Python tools in sandboxes of the cluster: GKE Agent Sandbox, by the HTTP runtime in its pods."""
