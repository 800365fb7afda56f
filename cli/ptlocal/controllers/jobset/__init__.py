"""The JobSet controller: `jobset_decision` is pure, `jobset_controller` applies its decisions."""
