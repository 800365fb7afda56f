"""Check whether a job fits its chips, before one is bought: its own train step, compiled for absent chips.

check                        from a job to its verdict
shapes/job_shapes            a spec as shapes: model, mesh, batch; nothing is allocated, no jax
shapes/device_bytes          what a device holds of them
shapes/rollout_shapes        how completions are sampled: rows, cache, mesh; `passes`: what a job runs besides its step
memory/formula               memory of a step in milliseconds, without the TPU compiler and without jax
memory/resident              what lives on a chip besides the step: rollout weights, their cache, reference weights
memory/staged_check          formula, fast compile, full compile: each only as far as needed
compiler/abstract_inputs     shapes as jax's arguments on shardings, and the step that takes them
compiler/programs            the functions that training jits, lowered from shapes; `rollout_programs`
compiler/compiler_process    the TPU compiler (libtpu), in a child process: memory to the byte, or a refusal
timing/                      FLOPs, collectives and bytes as a roofline of step time, chip-hours, cost
advice/                      what to change if it does not fit; the smallest change that fits; one job on many chips
verdict                      all of it as one document; `report` shows it to people and the operator
report/operator_job          preflight run by the operator; `verdict_cache`: verdicts of earlier jobs
"""
