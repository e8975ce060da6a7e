"""The stages ``start`` and ``given-policy``: a policy that no stage of the run trained.

Input: nothing for the base model, else ``inputs["adapter"]``, the directory of a LoRA adapter or of
a policy. Output: ``lineage.json``, and a copy of the adapter in ``adapter/``. Later stages do not
notice when the original changes or disappears. HiPRAG (arXiv 2510.07794) and ProGraph-R1 start from
instruct models in this way, without supervised examples.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config import Config
from pipeline.config.evaluation import BASE
from pipeline.config.run import SFT
from pipeline.core.content_cache import digest
from pipeline.core.errors import ConfigError, InputError, SteepError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    LINEAGE,
    UNTRAINED,
    adapter_directory,
    local_directory,
    model_hash,
)
from pipeline.engine.fingerprint import model_identity
from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.stage import STAGES, LightTask, StageTask

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.rollout.policy import Policy


class UntrainedPolicy(LightTask):
    """Base of the tasks below: the directory of the base model, or of a copy of an adapter."""

    setting: ClassVar[str]
    """The setting that names the policy."""

    @property
    def given(self) -> str:
        """``base``, or the directory of an adapter or policy."""
        raise NotImplementedError

    def files(self) -> dict[str, Path | str]:
        """The base model and the given adapter. Raises InputError when its directory is missing."""
        files = {"base model": model_identity(self.settings.model.base)}
        if self._source is not None:
            if not self._source.is_dir():
                raise InputError(
                    f"{self.setting} names {self.given}, and there is no such directory; name "
                    "base, or the directory of a LoRA adapter or of a policy"
                )
            files["adapter"] = adapter_directory(self._source)
        return files

    def facts(self) -> dict[str, Any]:
        return {"adapter": self._source} if self._source else {}

    def faults(self) -> Iterator[str]:
        """Why the adapter cannot be used."""
        return given_faults(self.settings, self._source, self.setting)

    def notes(self) -> Iterator[str]:
        """A sentence for an adapter of unknown grammar."""
        return form_notes(self._source)

    @property
    def _source(self) -> Path | None:
        return None if self.given == BASE else Path(self.given)


class Start(UntrainedPolicy):
    """Policy 0 of a run without a cold start (the setting ``start``)."""

    stage = "start"
    help = "policy 0 without training: the base model or an adapter (the setting start)"
    reads = ("lora.r", "lora.alpha", "lora.targets")
    setting = "start"

    @property
    def given(self) -> str:
        return self.settings.start


class GivenPolicy(UntrainedPolicy):
    """The teacher of the cold start (``sft_data.rejection_sampling``)."""

    stage = "given-policy"
    help = "the teacher of the cold start"
    named = False
    command = ("run", "sft-data")
    reads = ()
    setting = "sft_data.rejection_sampling.teacher"
    source = luigi.Parameter(description="base, or the directory of an adapter or policy")

    @property
    def given(self) -> str:
        return str(self.source)

    @property
    def label(self) -> str:
        return f"{self.stage}-{file_name(PurePath(self.given).name)}"


def file_name(name: str) -> str:
    """A name as part of a file's name: "-" replaces all but letters, digits and ``._-``.

    A changed name has a hash, because a file of "a b" must not replace that of "a/b".
    """
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[-100:]
    return plain if plain == name else f"{plain}-{digest(name).hex()[:6]}".lstrip("-")


def given_faults(settings: Config, source: Path | None, setting: str) -> Iterator[str]:
    """Why a policy of the setting cannot be used with these settings; loads no base model."""
    if source is None or local_directory(settings.model.base) is None:
        return  # another check names the base model, or it is fetched first
    try:
        (check_start if setting == Start.setting else check_given)(settings, source)
    except SteepError as error:
        yield f"{setting} names {source}: {error}"


ADAPTER = ("adapter/*",)  # of an adapter; its lineage follows from this


def policy(task: StageTask, number: int) -> StageTask:
    """The task that makes policy ``number``: round n for policy n, SFT or `Start` for policy 0.

    By name, against an import cycle: training reads stages that read the policy before it.
    """
    if number > 0:
        made: StageTask = task.clone(STAGES["train"], round=number)
    else:
        made = task.clone(STAGES["sft"] if task.run_settings.start == SFT else Start)
    return made


def policy_files(made: StageTask) -> tuple[str, ...]:
    """The files that other stages read of a task's policy; the base model has no adapter."""
    is_base = isinstance(made, UntrainedPolicy) and made.given == BASE
    return (LINEAGE,) if is_base else ADAPTER


def run(context: StageContext) -> dict[str, int]:
    """Write the policy; returns whether it has an adapter.

    Raises what `check_given` raises, and in the stage ``start`` what `check_start` raises.
    """
    from pipeline.training.lineage import Lineage, trained_form
    from pipeline.training.lora import locate_base

    source, model = context.inputs.get("adapter"), context.config.model
    if context.stage == Start.stage:
        check_start(context.config, source)
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


def check_given(config: Config, source: Path | None) -> Policy:
    """The policy in ``source``; None is the base model. No weights of the base model are loaded.

    Raises what `checked_policy`, `check_engine`, `check_adapter` and `check_lineage` raise.
    """
    from pipeline.llm.adapter_files import check_adapter, check_engine
    from pipeline.training.lineage import checked_policy
    from pipeline.training.lora import locate_base

    policy = checked_policy(source, config.model.base, config.hashes_file)
    if source is not None and policy.adapter is not None:
        check_engine(policy.adapter, config.engine)
        merged = config.engine.adapters == "merged"
        check_adapter(policy.adapter, locate_base(config.model.base), merged=merged)
    check_lineage(config, source)
    return policy


def check_lineage(config: Config, source: Path | None) -> None:
    """Check that a policy was trained to write what the configuration reads.

    Otherwise nearly all of its trajectories would be malformed. None is the base model, which may
    be a policy that was merged. Where nothing tells the lineage nothing is checked. Raises
    InputError for another grammar or format, ConfigError for another chat template.
    """
    from pipeline.rollout.conversations.chat_template import ChatTemplate
    from pipeline.training.lineage import trained_form
    from pipeline.training.lora import load_tokenizer, locate_base

    where = source or local_directory(config.model.base)
    form = trained_form(where)
    reads, writes = (config.grammar, config.format), (form["grammar"], form["format"])
    if None not in writes and reads != writes:
        raise InputError(
            f"{where}: the policy was trained to write grammar {writes[0]} in format {writes[1]}, "
            f"and the configuration has grammar {reads[0]} and format {reads[1]}, so its "
            f"trajectories would be malformed; set grammar: {writes[0]} and format: "
            f"{writes[1]}, or name a policy that was trained for these"
        )
    if form["chat_template"] is None:
        return
    tokenizer = load_tokenizer(locate_base(config.model.base), config.model)
    used = ChatTemplate(tokenizer, thinking=config.model.thinking).identity
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
    from pipeline.training.lora import check_shape

    if check_given(config, source).adapter is not None and source is not None:
        check_shape(adapter_directory(source), config.lora)


def form_notes(source: Path | None) -> Iterator[str]:
    """A sentence for an adapter whose grammar and format nothing tells."""
    from pipeline.training.lineage import trained_form

    if source is not None and trained_form(source)["grammar"] is None:
        yield (
            f"{source} does not say which grammar and format it was trained to write; in another "
            "than the configuration's, nearly all of its trajectories are malformed"
        )
