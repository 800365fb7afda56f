"""CEL, the expression language of x-kubernetes-validations: parsed once, compiled to Python closures.

Our own because the packaged interpreter takes a millisecond for the simplest rule: a hundred rules per object would
cost more than everything else the server does. A test holds it against that interpreter. Left out: type checking
(a wrong type is an error when the rule runs, not when the definition is created), unsigned integers as a type of
their own, protobuf messages, and the libraries nobody's definitions used when this was written (see library.py).
"""

from ptlocal.apiserver.schema.cel.syntax import CelError
from ptlocal.apiserver.schema.cel.validation_rules import RuleWalk

__all__ = ["CelError", "RuleWalk"]
