"""Node pools and reservations on Google Cloud: the only modules with effects in `capacity`."""
