"""The config of any vision tower."""

from pttrainer.models.config.gemma4_vision import Gemma4Vision
from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.config.vision import QwenVision, Vision

AnyVision = Vision | QwenVision | Pixtral | Gemma4Vision
