"""The page *Commands* lists the whole command line, and the shell can complete it."""

from __future__ import annotations

import pytest
from typer.main import get_command

from docs.commands_page import page
from pipeline.cli.app import app


def test_the_page_has_every_command_and_no_hidden_one() -> None:
    commands = get_command(app).commands
    listed = {
        line.removeprefix("### steep ")
        for line in page().splitlines()
        if line.startswith("### steep ")
    }
    assert listed == {name for name, command in commands.items() if not command.hidden}
    assert "#### steep config explain" in page()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("steep bro", {"browse"}),
        ("steep run --config embedded-h", {"embedded-hiprag"}),
        ("steep run sf", {"sft", "sft-data", "sft-sample"}),
        ("steep status --why eva", {"evaluate", "evaluate-policy"}),
        ("steep config explain pairs.eas", {"pairs.easy_outcome"}),
        ("steep init recall/mu", {"recall/musique"}),
    ],
)
def test_the_shell_completes(
    words: str,
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_STEEP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        get_command(app).main([], prog_name="steep")  # by itself it is called as pytest was
    assert (ended.value.code, set(capsys.readouterr().out.split())) == (0, expected)
