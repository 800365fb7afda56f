"""The config of any vision tower."""

from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.config.vision import QwenVision, Vision

AnyVision = Vision | QwenVision | Pixtral
