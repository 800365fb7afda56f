"""Rules for the pods: the program in them, variables and volumes, amounts and overrides."""
