"""Terminal view: loss mask in color, control characters of documents made visible."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline.core.errors import InputError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Step, Trajectory
from pipeline.core.text import visible
from pipeline.evaluation.terminal import steps_text, view
from tests.stages.fabricated_run import preference_pair, trajectory

GREEN, DIM, END = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def colored(width: int) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return (Console(file=stream, force_terminal=True, color_system="standard", width=width), stream)


def pair_file(directory: Path, spans: list[tuple[int, int, str]]) -> Path:
    """Ids 0 to 3 spell "ask [b]seen[/b] sum end"."""
    words = {"ask": 0, "[b]seen[/b]": 1, "sum": 2, "end": 3}
    codec = Tokenizer(models.WordLevel(words, unk_token="end"))
    codec.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    codec.save(str(directory / "tokenizer.json"))
    asked, other = trajectory("q", "Ostar"), trajectory("q", "Vell")
    chosen, rejected = replace(asked, rewards={"total": 2.5}), replace(other, trajectory_id="q-1")
    pair = replace(
        preference_pair("easy", chosen, rejected, 1),
        chosen_ids=[0, 1, 2],
        chosen_spans=spans,  # type: ignore[arg-type]
        rejected_ids=[3],
    )
    path = directory / "pairs.parquet"
    write_parquet(path, [pair], Pair)
    return path


@pytest.mark.parametrize("width", [60, 140])
def test_trained_tokens_are_green_and_masked_ones_dim(tmp_path: Path, width: int) -> None:
    spans = [(0, 1, "model"), (1, 2, "observation"), (2, 3, "model")]
    console, stream = colored(width)
    count = view(pair_file(tmp_path, spans), Pair, 5, tokenizer=tmp_path, console=console)
    text = stream.getvalue()
    assert count == 1
    assert f"{GREEN}ask{END}{DIM}[b]seen[/b]{END}{GREEN}sum{END}" in text
    assert f"{GREEN}end{END}" in text
    assert "total 2.50" in text
    assert "Which country is the city of Vell" in text


def test_token_spans_with_a_gap_are_refused(tmp_path: Path) -> None:
    path = pair_file(tmp_path, [(0, 1, "model"), (2, 3, "model")])
    with pytest.raises(InputError, match=r"pairs\.parquet:1: token spans: .*start at 1"):
        view(path, Pair, 5, tokenizer=tmp_path, console=colored(80)[0])


def test_no_field_of_a_record_can_control_the_terminal(tmp_path: Path) -> None:
    controls = "\x1b]0;x\x07\u202e\u2066\x9b"
    hostile = trajectory(
        f"q{controls}", f"Ostar{controls}", document=f"{controls}[red]markup[/red]",
        rewards={f"total{controls}": 1.0},
    )  # fmt: skip
    hostile = replace(hostile, question=controls, dataset=controls, answers=[controls])
    write_parquet(tmp_path / "trajectories.parquet", [hostile], Trajectory)
    console, stream = colored(200)
    path = tmp_path / "trajectories.parquet"
    view(path, Trajectory, 1, tokenizer=tmp_path, console=console)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())  # the colors are ours
    assert visible(shown) == shown
    assert "[red]markup[/red]" in shown


def test_a_text_that_stands_for_several_fields_of_a_step_is_shown_once() -> None:
    """An untrained model's search is its question, and its output is summary and conclusion."""
    asked, text = "Who founded Ostar?", "Vell founded Ostar."
    made = replace(
        trajectory("q", "Vell"),
        steps=[Step(entities=[asked], search=asked, summary=text, conclusion=text)],
    )
    lines = steps_text(made).plain.splitlines()
    assert lines[0] == f"step 1  search: {asked}"
    assert [line for line in lines if "entities" in line] == []
    assert [line for line in lines if "→" in line] == [f"  → {text}"]
    made.steps[0] = replace(made.steps[0], entities=["Ostar"], summary="It is a city.")
    lines = steps_text(made).plain.splitlines()
    assert [line.strip() for line in lines if "→" in line or "entities" in line] == [
        "entities: Ostar",
        "→ It is a city.",
        f"→ {text}",
    ]
