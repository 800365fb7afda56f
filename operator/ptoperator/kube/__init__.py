"""What the operator adds to `ptkube`: names, labels, actions, RBAC rules, the leader-fenced client."""
