"""How many rows are sampled at once, and on which mesh.

max_rows        rows and pages that fit the devices of this process
sampling_time   the estimated time of a rollout on a mesh
sampler_shape   the mesh that samples: by memory, then by that time
"""
