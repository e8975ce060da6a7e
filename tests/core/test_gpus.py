"""GPUs that a process may use: the driver's table, and the allotment of its environment."""

from pathlib import Path

import pytest

from pipeline.core.gpus import GIB, Gpu, nominal_gpu, parse_table, visible, visible_gpus

TWO = [Gpu("A", 80 * GIB), Gpu("B", 24 * GIB)]


def test_the_table_of_the_driver_gives_names_and_bytes() -> None:
    text = "NVIDIA A100-SXM4-80GB, 81920\nNVIDIA H100 MIG, [N/A]\n"
    assert parse_table(text) == [
        Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB),
        Gpu("NVIDIA H100 MIG", None),
    ]


@pytest.mark.parametrize(
    ("allotment", "names"),
    [
        (None, ["A", "B"]),
        ("1", ["B"]),
        ("1,0", ["B", "A"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["A"]),  # CUDA ignores what follows an impossible number
        ("GPU-8932f937", ["GPU-8932f937"]),
    ],
)
def test_the_allotment_of_the_environment_limits_the_gpus(
    allotment: str | None, names: list[str]
) -> None:
    assert [gpu.name for gpu in visible(TWO, allotment)] == names


def test_a_machine_without_the_driver_has_no_gpu(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "absent") == []


def test_a_gpu_of_80_gb_offers_less_than_its_name() -> None:
    memory = nominal_gpu(80).memory
    assert memory is not None
    assert memory / GIB == pytest.approx(78.8)
