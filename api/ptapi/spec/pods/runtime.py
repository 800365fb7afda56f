"""What runs: posttrain's own trainer, MaxText, any command, or a function of Python."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import FileUri, PythonCode, PythonName, SpecModel

Word = Annotated[str, Field(max_length=4096)]
"""A word of a command line."""


class NativeRuntime(SpecModel):
    """posttrain's own trainer."""


class MaxTextRuntime(SpecModel):
    """MaxText's `train_sft` (for sft) or `train_rl` (for grpo) in `image`, configured from this spec.

    `model.uri` is a MaxText checkpoint (`gs://…/0/items`).
    """

    model_name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """MaxText's name of the architecture, such as `llama3.1-70b-Instruct`."""
    args: Annotated[
        list[Annotated[str, Field(max_length=4096, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*=")]], Field(max_length=256)
    ] = []
    """Further MaxText options as `key=value`, such as `rollout_tensor_parallelism=8`; they override this spec."""


class ContainerRuntime(SpecModel):
    """Any command in `image`.

    It gets the job at /etc/posttrain/job.yaml, its run directory in POSTTRAIN_RUN_DIRECTORY, and JAX's variables for
    several processes; its exit codes have the native trainer's meaning.
    """

    command: Annotated[list[Word], Field(min_length=1, max_length=64)]
    """The command and its first arguments; it runs without a shell unless it starts one."""
    args: Annotated[list[Word], Field(max_length=256)] = []
    """Further arguments."""


class FunctionRuntime(PythonCode):
    """A Python function, called once by every process; `posttrain.remote` writes such jobs.

    Process 0's value, or the exception of any, is kept in the run directory. `model`, `algorithm` and `data` are not
    read.
    """

    function: PythonName = "main"
    """The function in that file."""
    arguments: FileUri | None = None
    """A file with its arguments, packed by `posttrain.remote`. Unset: it is called without any."""
    requirements: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\s-]")]], Field(max_length=64)
    ] = []
    """Packages that pip installs before the call, such as `einops==0.8.1`. They are kept in `output.uri`, so that the
    next job with the same ones installs nothing."""


class Runtime(SpecModel):
    """The program that runs: exactly one of these; unset is `native`."""

    native: NativeRuntime | None = None
    """posttrain's own trainer."""
    maxtext: MaxTextRuntime | None = None
    """MaxText."""
    container: ContainerRuntime | None = None
    """Any command."""
    function: FunctionRuntime | None = None
    """A Python function."""

    @property
    def is_native(self) -> bool:
        """Return True if posttrain's own trainer runs."""
        return self.maxtext is None and self.container is None and self.function is None
