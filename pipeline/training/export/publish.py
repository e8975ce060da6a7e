"""Publish an exported directory on the Hugging Face hub.

Input: a directory with a card, such as ``steep export`` or a stage writes, and the name of a
repository. Output: what would be uploaded and what the card lacks; the upload itself is one commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.model_files import ADAPTER_SETTINGS

_CARD = "README.md"
_MODEL = (ADAPTER_SETTINGS, "config.json")


@dataclass(frozen=True)
class Publication:
    """An upload: files with their bytes, by name, and what the card lacks, in words."""

    directory: Path
    repository: str
    kind: str  # "model" or "dataset"
    files: dict[str, int]
    licence: str | None
    lacks: list[str]


def publication(directory: Path, repository: str) -> Publication:
    """What an upload of ``directory`` would do.

    Raises InputError for a directory without a card, and for an impossible name of a repository.
    """
    from huggingface_hub import metadata_load
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(f"--repo: expected OWNER/NAME, got {repository!r} ({error})") from None
    if "/" not in repository:
        raise InputError(f"--repo: expected OWNER/NAME, got {repository!r}")
    header = metadata_load(directory / _CARD) if (directory / _CARD).is_file() else None
    if header is None:
        raise InputError(
            f"{directory} has no {_CARD} with a YAML header; name a directory of steep export"
        )
    kind = "model" if any((directory / name).is_file() for name in _MODEL) else "dataset"
    files = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    lacks = [] if header.get("license") else ["license: what others may do with it"]
    if kind == "model":
        if not header.get("model-index"):
            lacks.append("model-index: results of the evaluation")
        if Path(base := str(header.get("base_model", ""))).is_absolute() or not base:
            lacks.append(f"base_model: a name on the hub, in place of {base or 'nothing'}")
    return Publication(directory, repository, kind, files, header.get("license"), lacks)


def publish(wanted: Publication, *, private: bool) -> str:
    """Create the repository if needed, and upload all files in one commit; returns its address.

    Raises ConfigError without a token, and InputError with the hub's answer when it refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if get_token() is None:
        raise ConfigError("there is no token of the hub; run `hf auth login`, or set HF_TOKEN")
    api, repo, kind = HfApi(), wanted.repository, wanted.kind
    try:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, repo_type=kind, folder_path=wanted.directory)
    except OfflineModeIsEnabled:
        raise ConfigError("HF_HUB_OFFLINE is set; unset it to publish") from None
    except (HfHubHTTPError, OSError) as error:
        raise InputError(f"the hub refused {repo}: {error}") from None
    return str(commit.repo_url)
