"""The stand-ins have the files, control tokens and templates of what they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import config
from pipeline.core.records import Message
from pipeline.corpus.documents import read_documents
from pipeline.corpus.questions.load import load_questions
from pipeline.grammars.tokens import prompt_ids
from tests.published.data_files import WORDS, write_data
from tests.published.language_models import encode, train_tokenizer
from tests.published.lessons import Lesson
from tests.published.replacements import PUBLISHED

CHAT = [Message("system", "Be brief."), Message("user", "Who?")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", PUBLISHED[::2])
def test_every_file_of_a_published_configuration_is_there_and_is_read(
    name: str, data: Path
) -> None:
    settings = config.load(name, data=str(data))
    splits = settings.data
    for file in (*splits.sft, *splits.sampling, *splits.validation, *splits.test):
        assert load_questions(
            data / file.path,
            file.dataset,
            required=file.filter,
            select=file.select,
            limit=file.limit,
        )
    for corpus in settings.corpus.files:
        assert list(read_documents(data / corpus.path, corpus.format, corpus.dataset))


def test_some_gold_paragraphs_lie_in_no_single_passage(data: Path) -> None:
    """As with Wikipedia's passages: a paragraph of MuSiQue may cross their borders."""
    passages = [document.text for document in read_documents(data / "psgs_w100.tsv", "dpr-tsv")]
    assert all(len(passage.split()) <= WORDS for passage in passages)
    questions = load_questions(data / "musique_ans_v1.0_train.jsonl", "musique")
    gold = {part.support_text or "" for question in questions for part in question.decomposition}
    inside = [text for text in gold if any(text in passage for passage in passages)]
    assert 0 < len(inside) < len(gold)


def test_a_llama_3_prompt_begins_with_one_beginning_of_text() -> None:
    tokenizer = train_tokenizer("llama3", ["Be brief. Who? Step 1: Ada."] * 3)
    text = tokenizer.decode(prompt_ids(tokenizer, CHAT))
    assert text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert tokenizer.pad_token is None
    assert tokenizer.eos_token == "<|eot_id|>"


def test_a_qwen_prompt_without_a_system_message_gets_one() -> None:
    tokenizer = train_tokenizer("qwen2.5", ["Be brief. Who? Step 1: Ada."] * 3)
    text = tokenizer.decode(prompt_ids(tokenizer, CHAT[1:]))
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.bos_token is None


def test_a_lesson_teaches_what_the_model_writes_and_its_end() -> None:
    tokenizer = train_tokenizer("qwen2.5", ["Be brief. Who? Ada found Bo."] * 3)
    lesson = Lesson(CHAT, [("Ada", True), (" found", False), (" Bo.", True)])
    encoded = encode(tokenizer, lesson)
    learned = [
        token for token, by_model in zip(encoded.ids, encoded.learned, strict=True) if by_model
    ]
    assert tokenizer.decode(learned) == "Ada Bo.<|im_end|>"
