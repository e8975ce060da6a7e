"""The task that makes a policy, and policies that no stage of the run trains.

The base model, or an adapter from elsewhere, has a directory in the store like a trained policy, so
other stages read it in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import ClassVar

import luigi

from pipeline.config import Config
from pipeline.config.evaluation import BASE
from pipeline.config.run import SFT
from pipeline.core.errors import InputError, SteepError
from pipeline.core.model_files import LINEAGE, adapter_directory, local_directory
from tasks.base import STAGES, LightTask, StageTask
from tasks.fingerprint import model_identity
from tasks.sft import Sft


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
        if self.given != BASE:
            if not Path(self.given).is_dir():
                raise InputError(
                    f"{self.setting} names {self.given}, and there is no such directory; name "
                    "base, or the directory of a LoRA adapter or of a policy"
                )
            files["adapter"] = adapter_directory(Path(self.given))
        return files

    def input_directories(self) -> dict[str, str]:
        return {} if self.given == BASE else {"adapter": self.given}

    def faults(self) -> Iterator[str]:
        """Why the adapter cannot be used."""
        if self.given != BASE:
            yield from given_faults(self.settings, Path(self.given), self.setting)

    def notes(self) -> Iterator[str]:
        """A sentence for an adapter of unknown grammar."""
        from pipeline.stages.given_policy import form_notes

        if self.given != BASE:
            yield from form_notes(Path(self.given))


class Start(UntrainedPolicy):
    """Policy 0 of a run without a cold start (the setting ``start``)."""

    stage = "start"
    help = "policy 0 without training: the base model or an adapter (the setting start)"
    entry = "pipeline.stages.given_policy:run_start"
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
    made_by = "sft-data"
    entry = "pipeline.stages.given_policy:run"
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
    """A name as part of a file's name: "-" replaces all but letters, digits and ``._-``."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[-100:] or "policy"


def given_faults(settings: Config, source: Path, setting: str) -> Iterator[str]:
    """Why a policy of the setting cannot be used with these settings; loads no base model."""
    # Here, because it imports the modules of training.
    from pipeline.stages.given_policy import check_given, check_start

    if local_directory(settings.model.base) is None:
        return  # another check names it, or it is fetched first
    try:
        (check_start if setting == Start.setting else check_given)(settings, source)
    except SteepError as error:
        yield f"{setting} names {source}: {error}"


ADAPTER = ("adapter/*",)  # of an adapter; its lineage follows from this


def policy(task: StageTask, number: int) -> StageTask:
    """The task that makes policy ``number``: round n for policy n, SFT or `Start` for policy 0."""
    if number > 0:
        # By name, against an import cycle: training reads stages that read the policy before it.
        made: StageTask = task.clone(STAGES["train"], round=number)
    else:
        made = task.clone(Sft if task.run_settings.start == SFT else Start)
    return made


def policy_files(made: StageTask) -> tuple[str, ...]:
    """The files that other stages read of a task's policy; the base model has no adapter."""
    is_base = isinstance(made, UntrainedPolicy) and made.given == BASE
    return (LINEAGE,) if is_base else ADAPTER
