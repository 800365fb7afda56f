"""Where a judge's model answers: at a URL, or at the replicas of a service of the job."""

import sys
import threading

from ptapi.spec import JudgeReward
from pttrainer.errors import ServiceLost
from pttrainer.runtime.services import first_answer
from pttrainer.runtime.services.addresses import addresses
from pttrainer.runtime.services.replicas import Replicas


class JudgeModel:
    """A judge's model, for any number of threads. field: of the judge in the job. Raises ConfigError.

    name: the model's; origin: what a kept reply came from, whichever replica gave it.
    """

    def __init__(self, spec: JudgeReward, field: str) -> None:
        self._field = f"{field}.service"
        self._is_checked, self._lost = spec.service is None, ""
        self._lock = threading.Lock()
        if spec.service is not None:
            self.name = self.origin = spec.service
            self.replicas = Replicas([f"{url}/v1" for url in addresses(spec.service, self._field)])
            return
        assert spec.url is not None  # one of the two is given, and a model with the URL
        assert spec.model is not None
        self.name, self.origin = spec.model, spec.url
        self.replicas = Replicas([spec.url.rstrip("/")])

    def wait(self) -> None:
        """Wait for the first answer of a service, which may be loading weights. Raises ServiceLost."""
        with self._lock:
            if self._lost:
                raise ServiceLost(self._lost)
            if self._is_checked:
                return
            try:
                first_answer.wait(self.name, self._field, self.replicas, _note, lambda: None)
            except ServiceLost as lost:
                self._lost = str(lost)
                raise
            self._is_checked = True


def _note(line: str) -> None:
    print(f"judge: {line}", file=sys.stderr)
