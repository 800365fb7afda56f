"""The Job controller (batch/v1), for API servers beside which no kube-controller-manager runs."""
