"""Shapes of models give the parameters that their publishers state."""

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.core.model_shapes import PUBLISHED, shape_in, shape_of

# Numbers of weights in the published files.
PARAMETERS = {
    "meta-llama/Meta-Llama-3-8B-Instruct": 8_030_261_248,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
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


# The fields that matter of published ``config.json`` files, and the weights of the language model.
CONFIGS: dict[str, tuple[dict[str, object], int]] = {
    "Qwen/Qwen3-0.6B": (
        {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
            "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
            "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
        },
        596_049_920,
    ),
    "google/gemma-3-1b-it": (  # without tie_word_embeddings
        {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
            "head_dim": 256, "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
            "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
            "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
        },
        999_885_952,
    ),
    "google/gemma-3-4b-it": (  # without heads and vocabulary
        {
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
        },
        3_880_263_168,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_small_models_of_today_have_the_shape_of_their_config(name: str) -> None:
    """Norms of queries and keys, and two more of Gemma's layers, are left out: below .01 %."""
    values, parameters = CONFIGS[name]
    shape = shape_in(values)
    assert shape == PUBLISHED[name]
    assert shape.parameters == pytest.approx(parameters, rel=1e-4)


@pytest.mark.parametrize(
    ("experts", "known"),
    [
        ({"num_experts": 128, "moe_intermediate_size": 768}, False),  # Qwen3-30B-A3B
        ({"num_local_experts": 8}, False),  # Mixtral, gpt-oss
        ({"n_routed_experts": 64, "n_shared_experts": 2}, False),  # DeepSeek
        ({"moe_num_experts": [64, 64]}, False),  # ERNIE
        ({"text_config": {"num_experts": 16}}, False),
        ({"num_local_experts": 0}, True),  # dense models of a family with experts
        ({"num_experts": None, "num_experts_per_tok": 8}, True),
    ],
)
def test_a_mixture_of_experts_has_no_known_shape(experts: dict[str, object], known: bool) -> None:
    """It would count as a dense model: Qwen3-30B-A3B as one of 3 billion weights."""
    values, _ = CONFIGS["Qwen/Qwen3-0.6B"]
    assert (shape_in({**values, **experts}) is not None) is known
