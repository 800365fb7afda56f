"""The embedded cluster, seen from ptctl: where it is, and how a person points kubectl and ptctl at it."""

from __future__ import annotations

USE_IT = 'eval "$(ptctl local env)"'


def local_hint() -> str:
    """How to use the embedded cluster, if one runs; else empty."""
    from ptlocal.layout import Layout, default_data_dir

    layout = Layout(default_data_dir())
    if not layout.kubeconfig.exists():
        return ""
    return f"the cluster of `ptctl local up` is used after  {USE_IT}"
