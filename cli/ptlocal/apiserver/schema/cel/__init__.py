"""CEL, the expression language of x-kubernetes-validations: Google's evaluator, with what Kubernetes adds to it."""

from ptlocal.apiserver.schema.cel.environment import CelError, activation, program
from ptlocal.apiserver.schema.cel.validation_rules import RuleWalk

__all__ = ["CelError", "RuleWalk", "activation", "program"]
