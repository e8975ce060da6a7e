"""Sizes of product-quantizer codes on CPUs and GPUs."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.knowledge.index.kinds import check_gpu, code_bytes


@pytest.mark.parametrize(
    ("dimension", "size"),
    [
        (16, 2),
        (100, 20),  # 25 bytes are no size of the GPU
        (384, 48),
        (1024, 64),
        (1, 1),
        (776, 97),  # no size of the GPU fits; a code for CPUs has an eighth of the dimensions
    ],
)
def test_code_has_an_eighth_of_the_dimensions_or_the_largest_size_of_the_gpu(dimension, size):
    assert code_bytes(dimension) == size


@pytest.mark.parametrize("dimension", [769, 776, 1538])
def test_dimension_that_no_size_fits_is_refused_with_the_remedy(dimension):
    with pytest.raises(ConfigError, match=f"of {dimension} dimensions; set index.gpu to false"):
        check_gpu(dimension)
