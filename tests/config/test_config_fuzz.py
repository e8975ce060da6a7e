"""Generated bad configurations are refused in one sentence or load; nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.shipped import CONFIGURATIONS
from tests.config.config_cases import SMALL, Case, cases, check

BASE = f"base: {CONFIGURATIONS / 'embedded.yaml'}\n".encode()


def test_generated_configurations_load_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted = [check(case, tmp_path) for case in cases(seed=0, count=150)]
    assert 6 < sum(accepted) < 75  # neither is everything refused nor everything accepted


def test_the_unchanged_configuration_is_accepted(tmp_path: Path) -> None:
    assert check(Case(SMALL.encode()), tmp_path)
    assert check(Case(BASE), tmp_path)
