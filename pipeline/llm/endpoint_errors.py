"""The errors of an endpoint that concern all prompts, each with its remedy.

Input: what the endpoint did. Output: an EngineError of one sentence, which names the settings block
and the address. All text of the endpoint is already free of secrets and control characters.
"""

from __future__ import annotations

from pipeline.config.base import Endpoint
from pipeline.core.errors import EngineError
from pipeline.llm.endpoint_http import NoReply

_KEPT = "run again: finished answers are kept"


class EndpointErrors:
    """Builds the errors of the endpoint in configuration block ``block``."""

    def __init__(self, settings: Endpoint, block: str) -> None:
        self._settings = settings
        self._block = block
        self.place = f"{block}: {settings.base_url}"

    def unreachable(self, error: NoReply) -> EngineError:
        """The error for a request that no further try can answer."""
        return EngineError(f"{self.place}: {error}; {error.remedy}")

    def redirected(self, status: int, target: str) -> EngineError:
        """The error for a redirect."""
        return EngineError(
            f"{self.place} redirects to {target or 'no address'} (HTTP {status}); redirects are not "
            f"followed, because the prompts would go there; set {self._block}.base_url to the address "
            "that is meant"
        )

    def rejected(self, status: int, text: str) -> EngineError:
        """The error for a status that concerns all prompts."""
        return EngineError(
            f"{self.place} rejected {self._settings.model!r} (HTTP {status}: {text}); "
            f"{self._remedy(status)}"
        )

    def paused(self, seconds: float, status: int, text: str) -> EngineError:
        """The error for a requested pause that is too long to wait for."""
        return EngineError(
            f"{self.place} requests a pause of {seconds:g} s (HTTP {status}: {text}); run again after "
            "it: finished answers are kept"
        )

    def limited(self, cause: Exception) -> EngineError:
        """The error for a prompt that met a rate limit in every try."""
        return EngineError(
            f"{self.place} rejected a prompt {self._settings.retries + 1} times ({cause}); set "
            f"{self._block}.requests_per_minute or lower {self._block}.concurrency and {_KEPT}"
        )

    def down(self, symptom: str) -> EngineError:
        """The error for an endpoint that answers nothing."""
        return EngineError(
            f"{self.place} gave {symptom}; check that it runs and that {self._block}.timeout is long "
            f"enough, and {_KEPT}"
        )

    def spent(self, what: str, unsent: int) -> EngineError:
        """The error for a ceiling that is reached while ``unsent`` prompts have no answer."""
        prompts = f"{unsent:,} prompt{'s are' if unsent > 1 else ' is'}"
        return EngineError(
            f"{self.place}: {what}, and {prompts} not answered; raise the ceiling and {_KEPT}"
        )

    def _remedy(self, status: int) -> str:
        variable = self._settings.api_key_env
        if status in (401, 403) and variable is None:
            return f"set {self._block}.api_key_env to the environment variable that holds the key"
        if status in (401, 403):
            return f"set {variable} to a key that is valid for this model"
        if status in (404, 405):
            return f"correct {self._block}.base_url (it usually ends in /v1) or {self._block}.model"
        if status in (402, 429):
            return f"the account has no credit left; add credit and {_KEPT}"
        return f"correct {self._block} (model, limit, temperature, extra)"
