"""Gated models of the hub: whether this machine's token may fetch them.

The hub is asked for the header of one small file of each model that must be fetched. It is not
asked for models in its cache, and with ``HF_HUB_OFFLINE`` it is not asked at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.core.model_files import is_hub_name, is_offline, local_directory
from pipeline.core.model_shapes import CONFIG
from tasks.opened import Opened

_SECONDS = 10.0  # for one answer of the hub


def access_faults(opened: Iterable[Opened]) -> Iterator[str]:
    """A sentence for each model that the hub refuses to this machine, or an unreachable hub."""
    if is_offline():
        return  # `model_faults` names the missing models
    keys: dict[str, str] = {}
    for model in opened:
        if model.is_model and is_hub_name(model.name) and local_directory(model.name) is None:
            keys.setdefault(model.name, model.key)
    for name, key in keys.items():
        fault, reached = _refusal(name)
        if fault:
            yield f"{key}: {name} {fault}"
        if not reached:
            return


def _refusal(name: str) -> tuple[str, bool]:
    """Why a model cannot be fetched, empty if it can, and whether the hub was reached."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
    )

    try:
        get_hf_file_metadata(hf_hub_url(name, CONFIG), timeout=_SECONDS)
    except EntryNotFoundError:
        return "", True  # `CONFIG` is in a subfolder
    except GatedRepoError:
        if get_token() is None:
            login = "accept it, then run hf auth login, or set HF_TOKEN"
            return f"needs the acceptance of its licence and a token; {login}", True
        page = f"https://huggingface.co/{name}"
        return f"is not open to the account of the token; accept its licence at {page}", True
    except RepositoryNotFoundError:
        login = "" if get_token() else " with a token (hf auth login, HF_TOKEN)"
        return f"is not on the hub, or is private; correct the name, or ask for it{login}", True
    except HfHubHTTPError as error:
        status = error.response.status_code
        return f"is refused by the hub (HTTP {status}); renew the token (hf auth login)", True
    except Exception as error:  # noqa: BLE001 - many types, which all mean that there is no answer
        remedy = f"run hf download {name} where there is a network, or name a model directory"
        return (
            "is not in the cache of the hub, and the hub does not answer "
            f"({type(error).__name__}); {remedy}",
            False,
        )
    return "", True
