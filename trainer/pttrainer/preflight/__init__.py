"""Whether a job fits its chips, before one is bought: its own train step, compiled for chips that are not here.

subject    a spec as shapes: model, mesh, batch; nothing is allocated, no jax. `shares`: what a device holds of them
formula    memory of a step in milliseconds, without the TPU compiler and without jax
sampling   how completions are sampled: rows, cache, mesh; `passes`: what a job runs beside its step
inputs     a subject as jax's shapes on shardings, and the step that takes them
programs   the functions that training jits, lowered from shapes: the step, the scoring pass; `rollouts`
compiler    the TPU compiler (libtpu) asked about them: memory to the byte, or that they do not fit; `compiling`, the
            child that it runs in
outside    what lives on a chip beside the step: rollout weights, their cache, reference weights
estimate   FLOPs, collectives and bytes as a roofline of step time, chip-hours, cost
advice     what to change when it does not fit, each change tried with the formula
search     the smallest change that makes a job fit; `matrix`: one job on many chips
verdict     all of it as one document; `table` for people, `brief` for the operator
reported    as the operator runs it: termination message, run directory; `remembered`: verdicts of before
"""
