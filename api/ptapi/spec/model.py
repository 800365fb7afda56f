"""The model that is trained, and its tokenizer."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import DnsName, FileUri, ModelUri, Revision, SpecModel

MOST_CROPS = 4
"""Crops of an image with `panAndScan`, as in transformers."""
SecretKey = Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class SecretKeyRef(SpecModel):
    """A key of a Secret in the job's namespace."""

    name: DnsName
    """Name of the Secret."""
    key: SecretKey = "token"
    """Key in the Secret's data. `kubectl create secret generic hf --from-literal=token=…` creates `token`."""


class ModelSpec(SpecModel):
    """The model that training starts from."""

    uri: ModelUri
    """`hf://org/name`, `gs://bucket/dir`, `file:///dir`, or `random://preset` (seeded random weights)."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model. Unset: the default branch; the commit is pinned in the lineage."""
    tokenizer: ModelUri | None = None
    """The tokenizer, if it is not stored with the weights. Random models use a byte-level tokenizer."""
    chat_template: FileUri | None = None
    """URI of a Jinja chat template, `gs://` or `file://`, that replaces the model's own."""
    images: bool = False
    """Take images: load the vision tower (`training.vision`), and export the whole model. Otherwise a model with
    images is its text part, and rows with images are refused. Gemma 3 and 4, Llama 4, Mistral 3, Qwen3-VL and
    Qwen 3.5, with sft, dpo, grpo, ppo, raft."""
    pan_and_scan: bool = False
    """Show Gemma 3 wide and tall images a second time, in 2 to 4 crops, with transformers' defaults for
    `do_pan_and_scan`. Each crop takes as many tokens as an image."""
    stage: bool = False
    """Copy an `hf://` model into the bucket of `output.uri` first, on a CPU, while no chips wait: all jobs with that
    `output.uri` share the copy of a commit. The job then reads it there. Needs posttrain's own trainer."""
    token_secret_ref: SecretKeyRef | None = None
    """The Hugging Face token, for gated models. Never written into a pod spec, a log or the run directory."""
