"""Bytes per element of each term of the formula (`formula`), fitted to the TPU compiler at its lowest level."""

TIED_HEAD = 7.9
HEAD = 7.0
SECOND_HEAD = 4.0
LOGITS = 10.0
TIED_LOGITS = 4.0
MLP = 8.0
ATTENTION = 4.0
NORMED_ATTENTION = 12.0
ROUTED = 8.0
GATHERED = 1.5
GATHERED_FROZEN = 3.0
GATHERED_EXPERTS = 5.5
FROZEN_EXPERTS = 4.6
TOWER_STREAM = 8.0
TOWER_MLP = 4.0
TOWER_SCORES = 8.0
