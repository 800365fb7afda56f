"""HTTP: routes, handlers, bodies, watches, discovery, TLS."""
