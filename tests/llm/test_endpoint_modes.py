"""The endpoint client against every mode of `tests.llm.endpoint_modes`."""

from pathlib import Path

import pytest

from tests.llm.endpoint_modes import MODES, Mode, check


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_endpoint_that_misbehaves_is_named_or_survived(tmp_path: Path, mode: Mode) -> None:
    check(mode, tmp_path)


def test_the_modes_have_different_names() -> None:
    assert len({mode.name for mode in MODES}) == len(MODES) >= 100
