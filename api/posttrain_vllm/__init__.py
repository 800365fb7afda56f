"""A weight-transfer backend for vLLM servers: new weights are files, each tensor with its checksum.

Runs in vLLM's processes and imports nothing of posttrain: the operator mounts these files into the pods of samplers
as a package `posttrain_vllm` with an entry point (`vllm.general_plugins`), and an installed posttrain has that entry
point, too. `vllm serve --weight-transfer-config '{"backend": "posttrain-files"}'` chooses it. Read in vLLM 0.32.0.

tensor_files     finds the tensors of an update in their files and verifies them; the standard library alone
transfer_engine  vLLM's side: loads them into the model
several_hosts    starts and ends one host of a server on several
"""

BACKEND = "posttrain-files"
"""The name in `--weight-transfer-config`."""


def register() -> None:
    """Make the backend known in this process; a second time changes nothing."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine(BACKEND, f"{__name__}.transfer_engine", "FileTransferEngine")
    except ValueError:
        pass  # registered, under the package's other name
