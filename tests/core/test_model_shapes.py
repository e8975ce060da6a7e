"""Shapes of models give the parameters that their publishers state."""

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.core.model_shapes import PUBLISHED, shape_of

# Numbers of weights in the published files.
PARAMETERS = {
    "meta-llama/Meta-Llama-3-8B-Instruct": 8_030_261_248,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "intfloat/e5-base-v2": 109_482_240,
    "BAAI/bge-large-en-v1.5": 335_141_888,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_models_have_their_published_number_of_weights(name: str) -> None:
    assert PUBLISHED[name].parameters == PARAMETERS[name]


def test_a_local_model_has_the_shape_of_its_config() -> None:
    shape = shape_of("data/tiny_reader")
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.positions) == (5, 160, 3072, 4096)
    assert not shape.encoder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": ', "not valid JSON"),
        (
            '{"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9,'
            ' "head_dim": "x"}',
            "the sizes of the model are not numbers",
        ),
    ],
)
def test_a_damaged_config_is_named_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        shape_of(str(tmp_path))
    assert "config.json" in str(refused.value)


def test_lora_on_the_attention_of_llama_3_has_6_8_million_weights() -> None:
    shape = PUBLISHED["meta-llama/Meta-Llama-3-8B-Instruct"]
    # 32 layers of rank 8: q and o 4,096 + 4,096, k and v 4,096 + 1,024.
    assert shape.lora_parameters(8, ("q_proj", "k_proj", "v_proj", "o_proj")) == 6_815_744
