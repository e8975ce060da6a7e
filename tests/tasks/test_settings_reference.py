"""Every setting has stages that read it, and the page *Settings* lists it."""

import re
from collections import Counter

import pytest

from docs.settings_page import page
from pipeline.config import Config
from pipeline.config.base import Block, Execution, Indirect
from pipeline.config.lookup import all_blocks
from pipeline.engine.run import walk
from pipeline.engine.settings_reference import stages_reading
from tasks import task_for
from tests.config.settings_walk import blocks, parts
from tests.tasks.counting_tasks import ROOT

SETTINGS = [
    (place, setting) for block in all_blocks() for place in block.places for setting in block.settings
]  # fmt: skip
EMBEDDED = sorted(path.name for path in (ROOT / "configs").glob("embedded*.yaml"))


def dotted(place: str, name: str) -> str:
    return f"{place}.{name}".lstrip(".")


def test_every_field_that_is_no_block_is_a_setting_of_the_page_once() -> None:
    fields = {  # settings that blocks share are in their base block
        (next(c for c in reversed(block.__mro__) if name in getattr(c, "model_fields", ())), name)
        for block in blocks(Config)
        for name, field in block.model_fields.items()
        if not any(
            isinstance(kind, type) and issubclass(kind, Block)
            for kind, _ in parts(field.annotation)
        )
    }
    listed = [(block.block, setting.name) for block in all_blocks() for setting in block.settings]
    assert Counter(listed) == Counter(fields)
    rows = re.findall(r"^\| `\w+`[ |*]", page(), re.MULTILINE)
    assert len(rows) == len(fields)


def test_every_setting_is_read_by_a_stage_or_concerns_the_whole_run() -> None:
    whole_run = Config.marked(Execution) | Config.marked(Indirect)
    unread = [
        dotted(place, setting.name)
        for place, setting in SETTINGS
        if dotted(place, setting.name).partition(".")[0] not in whole_run
        and not stages_reading(dotted(place, setting.name))
    ]
    assert not unread


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_stage_reads_only_what_it_declares(name: str) -> None:
    for task in walk(task_for("report", str(ROOT / "configs" / name))):
        for read in task.reading():
            above = {read.rsplit(".", parts)[0] for parts in range(read.count(".") + 1)}
            assert above & {*task.reads}, (task.label, read)


def test_the_stages_of_a_policy_are_on_the_page() -> None:
    assert {"evaluate-policy"} < set(stages_reading("sampling.max_steps"))
    assert stages_reading("data.sft[].path") == ["questions-sft"]
