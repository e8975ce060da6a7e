"""Sizes of product-quantizer codes on CPUs and GPUs."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.index.pq_codes import GPU_SIZES, check_gpu, code_bytes


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


def test_every_code_divides_its_dimension_and_is_supported_unless_it_is_refused():
    refused = 0
    for dimension in range(1, 4097):
        size = code_bytes(dimension)
        assert dimension % size == 0
        try:
            check_gpu(dimension)
        except ConfigError:
            refused += 1
        else:
            assert size in GPU_SIZES
    assert 0 < refused < 4096


@pytest.mark.parametrize("dimension", [769, 776, 1538])
def test_dimension_that_no_size_fits_is_refused_with_the_remedy(dimension):
    with pytest.raises(ConfigError, match=f"of {dimension} dimensions; set index.gpu to false"):
        check_gpu(dimension)
