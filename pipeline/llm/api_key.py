"""The API key of an endpoint: read from its environment variable, and removed from other text."""

from __future__ import annotations

import json
import os

from pipeline.core.errors import ConfigError

_SECRET = 8  # characters; a shorter key is a placeholder such as "EMPTY", which answers may contain


class ApiKey:
    """The key in the environment variable ``variable``; None stands for an endpoint without a key.

    ``block`` is the configuration block of the endpoint, for error messages. Raises ConfigError when
    the variable is not set or holds characters that no key has.
    """

    def __init__(self, variable: str | None, block: str) -> None:
        self.value: str | None = None
        if variable is None:
            return
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ConfigError(
                f"{block}.api_key_env is {variable}, which is not set; export it, or remove "
                "api_key_env for an endpoint without a key"
            )
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"{variable} holds characters that are not allowed in a key; export it again"
            )
        self.value = key

    def clean(self, text: str) -> str:
        """``text`` with ``[key]`` in place of the key."""
        key = self.value
        if key is None or len(key) < _SECRET:
            return text
        return text.replace(key, "[key]").replace(json.dumps(key)[1:-1], "[key]")
