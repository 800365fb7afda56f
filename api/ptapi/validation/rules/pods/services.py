"""Rules for services: what each one is, and that whoever names one gets the kind that it needs."""

from collections.abc import Callable

from ptapi.spec import PostTrainJobSpec, Service
from ptapi.spec.pods.services import RESERVED_NAMES
from ptapi.validation.predicate import Predicate, compare, empty, has, one_of, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.chips.capacity import IS_EXISTING
from ptapi.validation.rules.chips.pathways import IS_USED
from ptapi.validation.rules.pods.env_and_volumes import variable_rules
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE, POOLS_PER_CHECK

_SERVICE = Scope("spec.services[]")
_JUDGE = Scope("spec.rewards[].judge")
_MCP = Scope("spec.environment.mcp[]")
_OPENENV = Scope("spec.environment.openenv")
_TEACHER = Scope("spec.algorithm.distill.teacher")
_NONE = empty("services")


def _judges(spec: PostTrainJobSpec) -> list[str | None]:
    return [reward.judge.service for reward in spec.rewards if reward.judge]


def _mcp(spec: PostTrainJobSpec) -> list[str | None]:
    return [server.service for server in spec.environment.mcp] if spec.environment else []


def _openenv(spec: PostTrainJobSpec) -> list[str | None]:
    openenv = spec.environment and spec.environment.openenv
    return [openenv.service] if openenv else []


def _teacher(spec: PostTrainJobSpec) -> list[str | None]:
    teacher = spec.algorithm.distill and spec.algorithm.distill.teacher
    return [teacher.service] if teacher else []


def _names_one(
    cel: str, named: Callable[[PostTrainJobSpec], list[str | None]], is_fit: Callable[[Service], bool]
) -> Predicate:
    """Require a service of a kind wherever one is named; cel: with `{}` for the kind of the service s."""

    def holds(spec: PostTrainJobSpec) -> bool:
        fitting = {service.name for service in spec.services if is_fit(service)}
        return all(name is None or name in fitting for name in named(spec))

    return Predicate(cel, holds, "||")


def _serves_a_model(service: Service) -> bool:
    return not service.is_program


def _is_program(service: Service) -> bool:
    return service.is_program


def _declared(name: str, kind: str) -> str:
    return f"has(self.services) && self.services.exists(s, s.name == {name} && {kind}has(s.model))"


def _pools_beside(spec: PostTrainJobSpec) -> int:
    samplers = spec.rollout.separate.replicas if spec.rollout.separate else 0
    return samplers + sum(service.replicas for service in spec.services if service.accelerator)


RULES: tuple[Rule, ...] = (
    _SERVICE.rule(
        "name",
        f"a name other than those of the job's own pods: {', '.join(RESERVED_NAMES)}",
        ~one_of("name", *RESERVED_NAMES),
    ),
    SPEC.rule(  # the CRD says this with x-kubernetes-list-type: map
        "services",
        "services with different names",
        Predicate("", lambda spec: len({service.name for service in spec.services}) == len(spec.services)),
    ),
    *variable_rules("spec.services[].env[]"),
    _SERVICE.rule("", "a model, an image, or both", has("model") | has("image")),
    _SERVICE.rule(
        "accelerator",
        "set with model, unless an image with vLLM for CPUs is",
        unset("model") | has("accelerator") | has("image"),
        "accelerator: {type: v6e-4}",
    ),
    _SERVICE.unset_unless("maxModelLen", has("model"), "or together with model"),
    *(
        _SERVICE.rule(field, "unset with model, which `vllm serve` serves", unset("model") | empty_)
        for field, empty_ in (("command", empty("command")), ("readinessPath", unset("readinessPath")))
    ),
    _JUDGE.exactly_one("url", "service"),
    _JUDGE.rule("model", "set with url, and unset with service, whose name it is", has("url").iff(has("model"))),
    _JUDGE.unset_unless("apiKeyEnv", has("url"), "or together with url: services take no key"),
    _OPENENV.exactly_one("url", "service"),
    _MCP.exactly_one("url", "command", "service"),
    _MCP.unset_unless("path", has("service"), "or together with service: a url has its own"),
    _TEACHER.exactly_one("uri", "service"),
    SPEC.rule(
        "algorithm.distill.topK",
        "at least 1 with a teacher's service, which does not send the log-probs of its whole vocabulary",
        unset("algorithm.distill")
        | unset("algorithm.distill.teacher")
        | unset("algorithm.distill.teacher.service")
        | compare("algorithm.distill.topK", ">=", 1),
        "topK: 20",
    ),
    SPEC.rule(
        "rewards",
        "judges whose service is one of services, with a model",
        _names_one(
            "!has(self.rewards) || self.rewards.all(r, !has(r.judge) || !has(r.judge.service) || "
            f"{_declared('r.judge.service', '')})",
            _judges,
            _serves_a_model,
        ),
        "services: [{name: judge, model: {uri: hf://org/name}, accelerator: {type: v6e-4}}]",
    ),
    SPEC.rule(
        "algorithm.distill.teacher.service",
        "one of services, with a model",
        _names_one(
            "!has(self.algorithm.distill) || !has(self.algorithm.distill.teacher) || "
            "!has(self.algorithm.distill.teacher.service) || "
            f"{_declared('self.algorithm.distill.teacher.service', '')}",
            _teacher,
            _serves_a_model,
        ),
        "services: [{name: teacher, model: {uri: hf://org/name}, accelerator: {type: v6e-4}}]",
    ),
    SPEC.rule(
        "environment.openenv.service",
        "one of services, with an image and no model",
        _names_one(
            "!has(self.environment) || !has(self.environment.openenv) || !has(self.environment.openenv.service) || "
            f"{_declared('self.environment.openenv.service', '!')}",
            _openenv,
            _is_program,
        ),
        "services: [{name: game, image: registry/name@sha256:…}]",
    ),
    SPEC.rule(
        "environment.mcp",
        "servers whose service is one of services, with an image and no model",
        _names_one(
            "!has(self.environment) || !has(self.environment.mcp) || self.environment.mcp.all(m, !has(m.service) || "
            f"{_declared('m.service', '!')})",
            _mcp,
            _is_program,
        ),
        "services: [{name: search, image: registry/name@sha256:…}]",
    ),
    SPEC.rule("services", "not supported yet; accepted: unset with a runtime other than native", _NONE | IS_NATIVE),
    SPEC.rule("services", "not supported yet; accepted: unset where Pathways drives the chips", _NONE | ~IS_USED),
    SPEC.rule(
        "services",
        "not supported yet; accepted: unset with capacity of type queuedProvisioning, whose request is for the "
        "trainer's pods",
        _NONE | Predicate("", lambda spec: all(option.type != "queuedProvisioning" for option in spec.capacity)),
    ),
    SPEC.rule(
        "services",
        f"at most {POOLS_PER_CHECK - 1} replicas with chips, samplers included, with queue and capacity that makes "
        "node pools, of which one is the trainer's: an admission check of Kueue can name no more",
        _NONE | unset("queue") | IS_EXISTING | Predicate("", lambda spec: _pools_beside(spec) <= POOLS_PER_CHECK - 1),
    ),
)
