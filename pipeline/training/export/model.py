"""A trained policy as a directory that PEFT, transformers and vLLM load.

Input: a base model, an adapter with its lineage, and metrics. Output: the adapter, or a merged
model, each with tokenizer, chat template, lineage and a model card.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import ALL, ALL_QUESTIONS, AVERAGE_TITLES
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.model_files import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    TEMPLATES,
    find_model,
    is_hub_name,
)
from pipeline.core.text import one_line
from pipeline.llm.adapter_files import adapter_settings, check_adapter
from pipeline.llm.merged_adapter import save_merged
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.training.export.directory import card, new_directory
from pipeline.training.lineage import Lineage


@dataclass(frozen=True)
class TrainedPolicy:
    """What an export needs of a policy.

    ``base`` is the setting ``model.base``, ``directory`` the files of that model. ``settings`` are
    lines of the card by name, and ``metrics`` rows of ``metrics.json`` for this policy.
    """

    name: str
    base: str
    directory: Path
    adapter: Path
    lineage: Lineage
    chat_template: str | None
    settings: Mapping[str, object]
    metrics: Sequence[Mapping[str, Any]]

    @property
    def base_name(self) -> str:
        """The hub name of the base model, or the absolute path of its directory."""
        from_hub = is_hub_name(self.base) and not Path(find_model(self.base)).is_dir()
        return self.base if from_hub else str(self.directory.resolve())

    @property
    def licence(self) -> str | None:
        """The licence that the base model's card names, if it is here.

        Raises InputError for a card that cannot be read.
        """
        import yaml
        from huggingface_hub import metadata_load

        readme = self.directory / "README.md"
        try:
            header = metadata_load(readme) if readme.is_file() else None
        except (ValueError, yaml.YAMLError) as error:
            cause = one_line(str(error), 200)
            raise InputError.at(readme, f"{cause}; correct this card, or remove it") from None
        return None if header is None else header.get("license")


def export_adapter(policy: TrainedPolicy, directory: Path) -> None:
    """Write the adapter to a new ``directory``, with the base model under a name that loads.

    Raises InputError when the directory exists, or the adapter or the base model's card is damaged.
    """
    check_adapter(policy.adapter, policy.directory)
    settings = adapter_settings(policy.adapter) | {"base_model_name_or_path": policy.base_name}
    with new_directory(directory) as output:
        write_json(output / ADAPTER_SETTINGS, settings)
        shutil.copyfile(policy.adapter / ADAPTER_WEIGHTS, output / ADAPTER_WEIGHTS)
        _complete(policy, output, merged=False)


def export_merged(policy: TrainedPolicy, directory: Path, dtype: str) -> None:
    """Write base plus adapter in ``dtype`` to a new ``directory``.

    Raises InputError as `export_adapter`, ConfigError when ``dtype`` would lose much of it.
    """
    with new_directory(directory) as output:
        try:
            save_merged(policy.directory, policy.adapter, output, dtype)
        except ConfigError as error:
            remedy = "name --dtype float32, or export the adapter"
            raise ConfigError(f"{str(error).partition('; set ')[0]}; {remedy}") from None
        _complete(policy, output, merged=True)


def _complete(policy: TrainedPolicy, output: Path, *, merged: bool) -> None:
    """Add tokenizer, chat template, lineage and card."""
    tokenizer: Any = model_tokenizer(policy.directory, policy.chat_template)
    # One template leaves the others of the base there, and that for tools would be used.
    shutil.rmtree(output / TEMPLATES, ignore_errors=True)
    tokenizer.save_pretrained(output)
    write_json(output / "lineage.json", asdict(policy.lineage) | {"base": policy.base_name})
    write_text(output / "README.md", model_card(policy, merged=merged))


def model_card(policy: TrainedPolicy, *, merged: bool) -> str:
    """README.md of a policy: its YAML header, origin, training and evaluation."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="question-answering",
            dataset_type="question-answering",
            dataset_name=f"{row['n']} questions of the split {row['split']}, "
            f"{AVERAGE_TITLES[row['dataset']]}",
            dataset_config=row["dataset"],  # results that differ in a name alone become one
            dataset_split=row["split"],
            metric_type=metric,
            metric_value=round(100 * row[metric], 2),
        )
        for row in policy.metrics
        if row["dataset"] in (ALL, ALL_QUESTIONS)
        for metric in ("em", "f1")
    ]
    header = ModelCardData(
        model_name=policy.name,
        base_model=policy.base_name,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        license=policy.licence,
        tags=["retrieval", "search-agent", policy.lineage.method.replace("+", "-")],
        eval_results=results or None,
    )
    return card(
        "model.md.j2", header=header.to_yaml(), policy=policy, lineage=policy.lineage, merged=merged
    )
