"""Write a configuration as YAML that `pipeline.config.load` reads back as the same configuration.

Input: a checked `Config`. Output: a text with every setting, defaults included and bases merged. Values
that YAML 1.1 or 1.2 would read as another type are quoted.
"""

from __future__ import annotations

from typing import Any

import yaml

from pipeline.config.run import Config
from pipeline.core.yaml_files import RESOLVERS

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """`yaml.SafeDumper` that quotes what either version of YAML reads as another type than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = {
    first: [*RESOLVERS.get(first, []), *yaml.SafeDumper.yaml_implicit_resolvers.get(first, [])]
    for first in {*RESOLVERS, *yaml.SafeDumper.yaml_implicit_resolvers}
}


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def as_yaml(config: Config) -> str:
    """The YAML text of a configuration, which holds no secrets, as configurations have none."""
    # Defaults are not validated: a default of 1 in a field of floats becomes 1.0 when it is read back.
    values = Config.model_validate(config.model_dump()).model_dump()
    return yaml_text(values)


def yaml_text(values: dict[str, Any]) -> str:
    """The YAML text of settings."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
