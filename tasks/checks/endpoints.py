"""Endpoints: whether the variables of their keys are set; nothing is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pipeline.config import Config
from pipeline.core.errors import ConfigError
from pipeline.llm.endpoint import ApiKey
from tasks.checks.uses import used_endpoints


def endpoint_faults(settings: Config, stages: Collection[str]) -> Iterator[str]:
    """A sentence for each endpoint without its key."""
    for used in used_endpoints(settings, stages):
        try:
            ApiKey(used.endpoint.api_key_env, f"{used.block}.endpoint")
        except ConfigError as error:
            yield str(error)
