"""Pods beside the trainer's: samplers, and services of the job. A Job of each makes its pods anew."""
