"""The engine of a policy, with the chat template of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.core.records import Message
from pipeline.engine.context import StageContext
from pipeline.engine.stage import walk_configured
from pipeline.llm.tokens import prompt_text
from tasks.report import Report
from tests.stages.fabricated_run import configuration
from tests.stages.question_stages import stage_context

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.fixture
def context(model: Path, tmp_path: Path) -> StageContext:
    """A stage whose settings name the template by its file."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    values = configuration().model_dump() | {
        "model": {"base": str(model), "chat_template": str(tmp_path / "template.jinja")},
        "runs_dir": str(tmp_path / "runs"),
        "cache_dir": str(tmp_path / "cache"),
    }
    values["engine"] |= {"kind": "transformers", "dtype": "float32", "max_model_len": 256}
    return stage_context(tmp_path, "sample", Config.model_validate(values))


def test_a_policy_reads_the_question_in_the_template_of_the_file(context: StageContext) -> None:
    engine = context.models.policy_engine(None)
    messages = [Message("system", "Search."), Message("user", "Who founded it?")]
    try:
        assert prompt_text(engine.tokenizer, messages) == "[Search.][Who founded it?]"
    finally:
        engine.close()


def test_cached_answers_of_a_policy_belong_to_the_content_of_the_template(
    context: StageContext, tmp_path: Path
) -> None:
    def answered() -> int:
        with context.models.policy_chat(None) as chat:
            list(chat.ask([("q", [Message("user", "Who?")])], max_tokens=2))
            return chat.usage.reused

    assert (answered(), answered()) == (0, 1)
    (tmp_path / "template.jinja").write_text(TEMPLATE + "!")
    assert answered() == 0


def test_every_stage_that_reads_the_template_has_its_content_in_its_fingerprint(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    config = str(CONFIGS / "embedded-hiprag.yaml")
    report = Report(config=config, overrides=(f"model.chat_template={template}",))
    reading = []
    for task in walk_configured(report):
        if "model" in task.reading():
            assert task.files()["chat template"] == template, task.stage
            assert "model" not in str(task.slice().get("model")), task.stage  # not by its path
            reading.append(task.stage)
    assert {"sft", "sample", "train", "evaluate-policy"} <= set(reading)
