"""Connections from this machine into the cluster: port-forwards, TensorBoard, the Pathways proxy."""
