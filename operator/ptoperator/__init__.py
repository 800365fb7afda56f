"""The operator: turns a PostTrainJob into running pods and reports what becomes of them."""
