"""Where Google's APIs are and who asks: the one place of `ptctl` that reads their environment variables.

| variable | |
| --- | --- |
| GOOGLE_CLOUD_PROJECT | project, where --project is not given |
| GOOGLE_OAUTH_ACCESS_TOKEN | token to use instead of Application Default Credentials |
| PTCTL_GKE_ENDPOINT, PTCTL_COMPUTE_ENDPOINT | other addresses of the APIs; `http://…`: a test server |
| PTCTL_CLOUD_BUILD_ENDPOINT | another address of Cloud Build's API |
| PTCTL_POLL_SECONDS | how often a long operation is polled (10) |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptctl.errors import CliError, InputError
from ptctl.ui import configurations

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_LOGIN = "`gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_OAUTH_ACCESS_TOKEN"


@dataclass(frozen=True)
class CloudSettings:
    """Endpoints, project and credentials."""

    project: str = ""
    gke_endpoint: str = ""
    compute_endpoint: str = ""
    access_token: str = ""
    poll_s: float = 10.0
    cloud_build_endpoint: str = "https://cloudbuild.googleapis.com"

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> CloudSettings:
        """Return the settings of the environment."""
        env = os.environ if env is None else env
        return cls(
            env.get(configurations.variable("project"))
            or env.get("GOOGLE_CLOUD_PROJECT")
            or env.get("CLOUDSDK_CORE_PROJECT")
            or "",
            env.get("PTCTL_GKE_ENDPOINT", ""),
            env.get("PTCTL_COMPUTE_ENDPOINT", ""),
            env.get("GOOGLE_OAUTH_ACCESS_TOKEN", ""),
            float(env.get("PTCTL_POLL_SECONDS") or 10.0),
            env.get("PTCTL_CLOUD_BUILD_ENDPOINT") or cls.cloud_build_endpoint,
        )

    @property
    def is_test_server(self) -> bool:
        """Return True if GKE is a server of tests, which takes no credentials."""
        return self.gke_endpoint.startswith("http://")

    def project_for(self, flag: str | None) -> str:
        """Return the project of --project, environment, configuration or credentials. Raises InputError."""
        project = flag or self.project or configurations.value("project") or self._credentials_project()
        if not project:
            raise InputError(
                "--project: not set, and the credentials name none; accepted: a project's id",
                "--project PROJECT, GOOGLE_CLOUD_PROJECT, or `ptctl config set project PROJECT`",
            )
        return project

    def credentials(self) -> Any:
        """Return Google credentials. Raises CliError."""
        if self.access_token:
            from google.oauth2.credentials import Credentials

            return Credentials(token=self.access_token)
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        try:
            return google.auth.default(scopes=_SCOPES)[0]
        except DefaultCredentialsError as error:
            raise CliError("no Google credentials on this machine", _LOGIN) from error

    def token(self) -> str:
        """Return a token that GKE's API servers accept."""
        if self.access_token:
            return self.access_token
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        credentials = self.credentials()
        try:
            credentials.refresh(Request())
        except GoogleAuthError as error:
            raise CliError(f"Google gives no token: {error}", _LOGIN) from error
        return str(credentials.token)

    def _credentials_project(self) -> str:
        if self.access_token or self.is_test_server:
            return ""
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        try:
            return str(google.auth.default(scopes=_SCOPES)[1] or "")
        except DefaultCredentialsError:
            return ""
