"""Users' code in child processes: confined, limited in time, killable."""
