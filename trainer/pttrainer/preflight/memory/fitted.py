"""Bytes per element of each term of the formula (`formula`), fitted to the TPU compiler at its lowest level."""

TIED_HEAD = 7.9
HEAD = 7.0
SECOND_HEAD = 4.0
FROZEN_TABLE = 0.7
"""Of a frozen head's bytes, on v6e, where it is the embedding and stored as it is computed with."""
LOGITS = 10.0
TIED_LOGITS = 3.0
MLP = 8.0
EXPERTS = 4.0
BIASED_EXPERTS = 8.0
ATTENTION = 4.0
NORMED_ATTENTION = 12.0
ROUTED = 5.75
ROUTED_FROZEN = 8.0
GATHERED = 1.5
GATHERED_FROZEN = 3.0
GATHERED_EXPERTS = 2.25
GATHERED_EXPERTS_IN_TURNS = 4.0
FROZEN_EXPERTS = 2.75
TOWER_FORWARD = 5.0
TOWER_BACKWARD = 13.0
TOWER_NORMED_HEADS = 12.0
