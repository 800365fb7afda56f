"""Kubernetes' affinity, to check one that the CRD leaves open: its schema in full would be a tenth of the CRD.

Left out: the names and values themselves, which the API server checks in the pod.
"""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import SpecModel

Weight = Annotated[int, Field(ge=1, le=100)]
Words = list[str]


class _Expression(SpecModel):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Words = []


class _NodeTerm(SpecModel):
    match_expressions: list[_Expression] = []
    match_fields: list[_Expression] = []


class _NodeTerms(SpecModel):
    node_selector_terms: Annotated[list[_NodeTerm], Field(min_length=1)]


class _PreferredNode(SpecModel):
    weight: Weight
    preference: _NodeTerm


class _NodeAffinity(SpecModel):
    required_during_scheduling_ignored_during_execution: _NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: list[_PreferredNode] = []


class _LabelSelector(SpecModel):
    match_labels: dict[str, str] = {}
    match_expressions: list[_Expression] = []


class _PodTerm(SpecModel):
    topology_key: str
    label_selector: _LabelSelector | None = None
    namespaces: Words = []
    namespace_selector: _LabelSelector | None = None
    match_label_keys: Words = []
    mismatch_label_keys: Words = []


class _PreferredPod(SpecModel):
    weight: Weight
    pod_affinity_term: _PodTerm


class _PodAffinity(SpecModel):
    required_during_scheduling_ignored_during_execution: list[_PodTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[_PreferredPod] = []


class _Affinity(SpecModel):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Pod(SpecModel):
    affinity: _Affinity | None


class _Spec(SpecModel):
    pod: _Pod


class OnlyAffinity(SpecModel):
    """A job of nothing but its affinity, so that findings name the field as the user writes it."""

    spec: _Spec
