"""The stages ``start`` and ``given-policy``: a policy that no stage of the run trained.

Input: nothing for the base model, else ``inputs["adapter"]``, the directory of a LoRA adapter or of
a policy. Output: ``lineage.json``, and a copy of the adapter in ``adapter/``. Later stages do not
notice when the original changes or disappears. HiPRAG (arXiv 2510.07794) and ProGraph-R1 start from
instruct models in this way, without supervised examples.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    model_hash,
)
from pipeline.llm.adapter_files import check_adapter
from pipeline.rollout.policy import Policy
from pipeline.run.context import StageContext
from pipeline.stages.train import used_template
from pipeline.training.lineage import Lineage, checked_policy, read_lineage
from pipeline.training.lora import check_shape, load_tokenizer, locate_base


def run(context: StageContext) -> dict[str, int]:
    """Write the policy; returns whether it has an adapter.

    Raises what `checked_policy` and `check_adapter` raise, and ConfigError for a policy of
    conversations under another chat template.
    """
    source, model = context.inputs.get("adapter"), context.config.model
    policy = _policy(context)
    if source is not None and policy.adapter is not None:
        check_adapter(policy.adapter, locate_base(model.base))
        (context.output / "adapter").mkdir()
        for name in (ADAPTER_SETTINGS, ADAPTER_WEIGHTS):
            shutil.copyfile(policy.adapter / name, context.output / "adapter" / name)
    if source is not None and (source / LINEAGE).is_file():
        _check_template(context, source)
        shutil.copyfile(source / LINEAGE, context.output / LINEAGE)
    else:
        Lineage(
            policy=policy.fingerprint, base=model.base,
            base_sha=model_hash(locate_base(model.base)), parent=None, reference=None, round=0,
            method="given" if policy.adapter else UNTRAINED, settings={}, seed=context.seed,
            counts={},
        ).write(context.output)  # fmt: skip
    print(f"policy {policy.fingerprint}: {source or model.base}")
    return {"adapters": int(policy.adapter is not None)}


def run_start(context: StageContext) -> dict[str, int]:
    """Like `run`, for policy 0, which the rounds continue.

    Raises ConfigError as well, for an adapter whose shape differs from the block ``lora``.
    """
    source = context.inputs.get("adapter")
    if source is not None and _policy(context).adapter is not None:
        check_shape(adapter_directory(source), context.config.lora)
    return run(context)


def _check_template(context: StageContext, source: Path) -> None:
    """Raise ConfigError unless a policy of conversations has the template that it learned."""
    trained, model = read_lineage(source).chat_template, context.config.model
    if trained is None or context.config.format == "tags":
        return
    used = used_template(context.config, load_tokenizer(locate_base(model.base), model))
    if used != trained:
        raise ConfigError(
            f"{source} was trained under the chat template {trained}, and model.chat_template and "
            f"model.thinking give {used}; set both as in its training"
        )


def _policy(context: StageContext) -> Policy:
    config = context.config
    return checked_policy(context.inputs.get("adapter"), config.model.base, config.hashes_file)
