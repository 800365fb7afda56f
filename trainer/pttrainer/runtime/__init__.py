"""What a process needs whatever it trains: devices, storage, reporting."""
