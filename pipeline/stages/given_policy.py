"""The stages ``start`` and ``given-policy``: a policy that no stage of the run trained.

Input: nothing for the base model, else ``inputs["adapter"]``, the directory of a LoRA adapter or of
a policy. Output: ``lineage.json``, and a copy of the adapter in ``adapter/``. Later stages do not
notice when the original changes or disappears. HiPRAG (arXiv 2510.07794) and ProGraph-R1 start from
instruct models in this way, without supervised examples.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.conversations.chat_template import ChatTemplate
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    local_directory,
    model_hash,
)
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.llm.adapter_files import check_adapter, check_engine
from pipeline.rollout.policy import Policy
from pipeline.run.context import StageContext
from pipeline.training.lineage import Lineage, checked_policy, trained_form
from pipeline.training.lora import check_shape, load_tokenizer, locate_base


def run(context: StageContext) -> dict[str, int]:
    """Write the policy; returns whether it has an adapter. Raises what `check_given` raises."""
    source, model = context.inputs.get("adapter"), context.config.model
    policy = check_given(context.config, source)
    if policy.adapter is not None:
        (context.output / "adapter").mkdir()
        for name in (ADAPTER_SETTINGS, ADAPTER_WEIGHTS):
            shutil.copyfile(policy.adapter / name, context.output / "adapter" / name)
    if source is not None and (source / LINEAGE).is_file():
        shutil.copyfile(source / LINEAGE, context.output / LINEAGE)
    else:
        Lineage(
            policy=policy.fingerprint, base=model.base,
            base_sha=model_hash(locate_base(model.base)), parent=None, reference=None, round=0,
            method="given" if policy.adapter else UNTRAINED, settings={}, seed=context.seed,
            counts={}, **trained_form(source),
        ).write(context.output)  # fmt: skip
    print(f"policy {policy.fingerprint}: {source or model.base}")
    for note in form_notes(source):
        print(note)
    return {"adapters": int(policy.adapter is not None)}


def run_start(context: StageContext) -> dict[str, int]:
    """Like `run`, for policy 0, which the rounds continue.

    Raises what `check_start` raises.
    """
    check_start(context.config, context.inputs.get("adapter"))
    return run(context)


def check_given(config: Config, source: Path | None) -> Policy:
    """The policy in ``source``; None is the base model. No weights of the base model are loaded.

    Raises what `checked_policy`, `check_engine`, `check_adapter` and `check_lineage` raise.
    """
    policy = checked_policy(source, config.model.base, config.hashes_file)
    if source is not None and policy.adapter is not None:
        check_engine(policy.adapter, config.engine)
        merged = config.engine.adapters == "merged"
        check_adapter(policy.adapter, locate_base(config.model.base), merged=merged)
    check_lineage(config, source)
    return policy


def written_form(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a policy is trained to write, and in which chat template, for its lineage."""
    template = ChatTemplate(tokenizer, thinking=config.model.thinking)
    return {
        "chat_template": template.identity, "grammar": config.grammar, "format": config.format
    }  # fmt: skip


def check_lineage(config: Config, source: Path | None) -> None:
    """Check that a policy was trained to write what the configuration reads.

    Otherwise nearly all of its trajectories would be malformed. None is the base model, which may
    be a policy that was merged. Where nothing tells the lineage nothing is checked. Raises
    InputError for another grammar or format, ConfigError for another chat template.
    """
    where = source or local_directory(config.model.base)
    form = trained_form(where)
    reads, writes = (config.grammar, config.format), (form["grammar"], form["format"])
    if None not in writes and reads != writes:
        raise InputError(
            f"{where}: the policy was trained to write grammar {writes[0]} in format {writes[1]}, "
            f"and the configuration has grammar {reads[0]} and format {reads[1]}, so its "
            f"trajectories would be malformed; set grammar: {writes[0]}, rewards.kind: {writes[0]} "
            f"and format: {writes[1]}, or name a policy that was trained for these"
        )
    if form["chat_template"] is None:
        return
    tokenizer = load_tokenizer(locate_base(config.model.base), config.model)
    used = written_form(config, tokenizer)["chat_template"]
    if used != form["chat_template"]:
        raise ConfigError(
            f"{where} was trained under the chat template {form['chat_template']}, and "
            f"model.chat_template and model.thinking give {used}; set both as in its training"
        )


def check_start(config: Config, source: Path | None) -> None:
    """Check the policy that the rounds continue.

    Raises what `check_given` raises, and ConfigError for an adapter whose shape differs from the
    block ``lora``.
    """
    if check_given(config, source).adapter is not None and source is not None:
        check_shape(adapter_directory(source), config.lora)


def form_notes(source: Path | None) -> Iterator[str]:
    """A sentence for an adapter whose grammar and format nothing tells."""
    if source is not None and trained_form(source)["grammar"] is None:
        yield (
            f"{source} does not say which grammar and format it was trained to write; in another "
            "than the configuration's, nearly all of its trajectories are malformed"
        )
