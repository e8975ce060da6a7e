"""Policies that no stage of the run trains: the base model, or an adapter from elsewhere.

Each has a directory in the store like a trained policy, so other stages read it in the same way.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import luigi

from pipeline.config.evaluation import BASE, given_name
from pipeline.core.errors import InputError
from pipeline.core.model_files import adapter_directory
from tasks.base import LightTask, StageTask
from tasks.fingerprint import model_identity
from tasks.folders import file_name


class UntrainedPolicy(LightTask):
    """Base of the tasks below: the directory of the base model, or of a copy of an adapter."""

    @property
    def given(self) -> str:
        """``base``, or the directory of an adapter or policy."""
        raise NotImplementedError

    @property
    def setting(self) -> str:
        """The setting that names the policy."""
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
    """A policy of ``evaluation.policies``."""

    stage = "given-policy"
    help = "a policy of evaluation.policies"
    named = False
    entry = "pipeline.stages.given_policy:run"
    reads = ()
    setting = "evaluation.policies"
    source = luigi.Parameter(description="base, or the directory of an adapter or policy")

    @property
    def given(self) -> str:
        return str(self.source)

    @property
    def label(self) -> str:
        return f"{self.stage}-{file_name(given_name(self.given))}"

    @property
    def remake_command(self) -> str:
        return remove_and_evaluate(self)


def remove_and_evaluate(task: StageTask) -> str:
    """The command that makes the output of a task again if no command names the task."""
    again = ["steep", "run", "evaluate", *task.options]
    return f"{shlex.join(['rm', '-r', str(task.directory)])} && {shlex.join(again)}"
