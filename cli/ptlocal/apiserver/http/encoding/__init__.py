"""Bodies of requests as objects: JSON, YAML, and Kubernetes' protobuf."""
