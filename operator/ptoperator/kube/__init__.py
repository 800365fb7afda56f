"""The operator's additions to `ptkube`: names, labels, actions, RBAC rules, the audited client."""
