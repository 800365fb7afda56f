"""`ptctl cluster doctor JOB`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from ptctl.cluster.doctor.job import explanation
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import view
from ptctl.ui.app import App, Target


def explain(app: App, target: Target, name: str, form: str | None) -> None:
    """Print what the job waits for, what was tried, and what comes next. Raises MissingError."""
    job = view(fetch(app.connect(target), target, name))
    pairs = explanation(job, datetime.now(UTC))
    if form == "json":
        rows = [{"subject": label.lower(), "text": text} for label, text in pairs]
        app.console.data(json.dumps({"job": job.name, "namespace": job.namespace, "explanation": rows}, indent=2))
    else:
        app.console.data("\n".join(f"{label + ':':<11} {text}" for label, text in pairs))
