"""Divide the frozen base of a policy among the training processes (PyTorch's FSDP2).

Input: a base model on the CPU. Output: the same model, of whose decoder layers each process holds
its part. A layer is gathered while it computes, in both directions, and freed afterwards.
Embeddings and the LM head stay whole, because TRL's fused head reads their weights outside of their
modules.

Adapters come after that, as ordinary parameters. Gradients, optimizer, checkpoints and files are
the same as in data parallel training, and DistributedDataParallel is told to leave the shards
alone. The base has no gradients, so nothing of it is reduced.

Gathering is collective, so all processes must make the same number of forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.policy import Trainer
from pipeline.core.errors import TrainingError
from pipeline.training.trl_types import CausalModel, PeftModel

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def load_sharded(
    load: Callable[[], CausalModel], settings: Trainer, device: Literal["cpu", "cuda"]
) -> CausalModel:
    """The model that ``load`` returns on the CPU, divided among the training processes.

    Every one of them calls it. The processes take turns: each holds the whole base
    until its part is on its device, so a machine needs RAM for only one base. Raises TrainingError
    for a model without a list of decoder layers.
    """
    from accelerate import PartialState
    from torch.distributed.device_mesh import init_device_mesh

    state, model = PartialState(cpu=device == "cpu"), None
    # The name tells PEFT that layers compute with whole weights.
    mesh = init_device_mesh(device, (settings.processes,), mesh_dim_names=("fsdp",))
    for turn in range(settings.processes):
        if turn == state.local_process_index:
            model = _shard(load(), mesh, state.device)
        state.wait_for_everyone()
    assert model is not None
    if state.is_main_process:
        held, whole = _weights(model)
        print(f"each of {settings.processes} processes holds {held:,} of {whole:,} base weights")
    return model


def _shard(model: CausalModel, mesh: DeviceMesh, device: torch.device) -> CausalModel:
    """Shard the decoder layers over ``mesh``, and move all other weights to ``device``."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn import ModuleList

    decoder: Any = model.base_model
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, ModuleList):
        raise TrainingError(
            f"{type(model).__name__} has no list of decoder layers, which shard_base divides; set "
            "it to false"
        )
    divided = {value for layer in layers for value in layer.parameters()}
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    whole = set(decoder.parameters()) - divided
    fully_shard(decoder, mesh=mesh, ignored_params=whole)  # the root, which orders the layers
    tensors: Any = model
    for value in (*tensors.parameters(), *tensors.buffers()):
        if not is_shard(value):
            value.data = value.data.to(device)
    return model


def _weights(model: CausalModel) -> tuple[int, int]:
    """The weights that this process holds, and the weights of the whole model."""
    held = whole = 0
    tensors: Any = model
    for value in tensors.parameters():
        whole += value.numel()
        held += value.to_local().numel() if is_shard(value) else value.numel()
    return held, whole


def is_shard(value: torch.Tensor) -> bool:
    """Whether a weight is divided among processes, so that this process holds a part."""
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def leave_shards_alone(model: PeftModel) -> None:
    """Tell DistributedDataParallel, which will wrap ``model``, to ignore the shards of its base."""
    from torch.nn.parallel import DistributedDataParallel

    names = [name for name, value in model.named_parameters() if is_shard(value)]
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, names)
