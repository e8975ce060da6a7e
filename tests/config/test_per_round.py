"""Settings of single rounds: merging, the configuration of a round, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.config import Config, load
from pipeline.config.per_round import ROUND_SETTINGS
from pipeline.core.errors import ConfigError
from pipeline.core.shipped import CONFIGURATIONS

EMBEDDED = CONFIGURATIONS / "embedded.yaml"
HIPRAG = CONFIGURATIONS / "embedded-hiprag.yaml"


def test_a_round_has_its_settings_and_those_of_the_run() -> None:
    config = load(EMBEDDED, ("per_round.2.pairs.easy_outcome=0.4", "pairs.hard_margin=0.2"))
    assert [config.of_round(n).pairs.easy_outcome for n in (1, 2, 3)] == [0.3, 0.4, 0.3]
    assert config.of_round(2).pairs.hard_margin == 0.2
    plain = load(EMBEDDED, ("pairs.hard_margin=0.2",))
    assert config.of_round(1) == config.of_round(4) == plain == plain.of_round(2)
    assert config.of_round(2).per_round == {}


def test_lists_and_optional_blocks_are_replaced_and_blocks_merged() -> None:
    judges = "{over: {backend: closed-world}, under: {backend: closed-world}}"
    config = load(
        HIPRAG,
        (
            f"per_round.1.judges={judges}",
            "per_round.1.judges.over.noisy={share: 0.1}",
            "per_round.1.dpo={eta: [7], beta: 0.1}",
        ),
    )
    first, second = config.of_round(1), config.of_round(2)
    assert first.judges is not None
    assert second.judges is not None
    assert first.judges.over.noisy is not None
    assert second.judges.over.noisy is None
    assert (first.dpo.eta, first.dpo.beta) == ((7.0,), 0.1)
    assert first.dpo.learning_rate == second.dpo.learning_rate


def test_files_merge_the_settings_of_each_round(tmp_path: Path) -> None:
    below, above, none = (tmp_path / f"{name}.yaml" for name in ("below", "above", "none"))
    below.write_text(
        f"base: {EMBEDDED}\n"
        "per_round:\n  2: {pairs: {easy_outcome: 0.4, margin: 90}}\n  3: {dpo: {beta: 0.1}}\n"
    )
    above.write_text("base: below.yaml\nper_round: {2: {pairs: {margin: 50}}, 3: null}\n")
    none.write_text("base: below.yaml\nper_round: null\n")
    assert load(above).per_round == {2: {"pairs": {"easy_outcome": 0.4, "margin": 50}}}
    assert load(none).per_round == {}
    assert load(above, ("per_round.2.pairs.margin=7",)).of_round(2).pairs.margin == 7


def test_rounds_survive_json() -> None:
    """A stage's process gets the configuration as JSON, which has only texts as keys."""
    config = load(EMBEDDED, ("per_round.2.pairs.easy_outcome=0.4", "per_round.3.dpo.beta=1"))
    sent = json.loads(json.dumps(config.model_dump(mode="json")))
    assert Config.model_validate(sent) == config


@pytest.mark.parametrize(
    ("overrides", "number", "message"),
    [
        (
            (),
            4,
            r"round is 4, and rounds is 3; choose a round up to 3, or set rounds to at least 4",
        ),
        (("rounds=0",), 1, "round is 1, and rounds is 0; to have rounds, set rounds to at least 1"),
        (("until=pair",), 2, "round is 2, and until is pair, so that the run ends with the pairs"),
    ],
)
def test_a_round_that_the_run_does_not_have_is_refused(
    overrides: tuple[str, ...], number: int, message: str
) -> None:
    config = load(EMBEDDED, overrides)
    config.check_round(number - 1, first=0)
    with pytest.raises(ConfigError, match=message):
        config.check_round(number)


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (CONFIGURATIONS.parent / "docs" / "concepts" / "stages.md").read_text()
    section = page[page.index("## Settings of single rounds") :]
    [example] = re.findall(r"```yaml\n(.*?)```", section[: section.index("## A stage")], re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(f"base: {EMBEDDED}\n{example}")
    config = load(file)
    assert config.of_round(2).pairs.easy_outcome == 0.4
    assert config.of_round(2).sampling.temperature == 0.9
    assert config.of_round(3).dpo.beta == 0.1
    for name in ROUND_SETTINGS:
        assert f"`{name.rpartition('.')[2]}`" in section
