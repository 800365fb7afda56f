"""The terminal: click groups and options, console, tables, exit codes, XPK's flags."""
