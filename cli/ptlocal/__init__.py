"""The embedded cluster: an API server, controllers and a kubelet stand-in for laptops and tests."""
