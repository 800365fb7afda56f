"""The JobSet controller: `decide` is pure, `controller` applies what it decided."""
