"""The kubelet stand-in: runs the pods bound to its node as local processes, without root and without images."""
