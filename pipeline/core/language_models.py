"""Load a language model whose files hold all of its weights.

transformers gives random numbers to weights that it does not find, and only warns. Files of another
module, such as one that PEFT or DataParallel wraps, have none of them under their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_language_model(model: Path | str, **arguments: Any) -> Any:
    """The model in a directory, or of a hub name; ``arguments`` as for ``from_pretrained``.

    Raises ValueError when its files lack a weight, and what transformers raises.
    """
    from transformers import AutoModelForCausalLM

    loaded, found = AutoModelForCausalLM.from_pretrained(
        model,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **arguments,
    )
    others = {name for name, *_ in found["mismatched_keys"]}
    if lacking := sorted(others.union(found["missing_keys"])):
        raise ValueError(
            f"the files lack {len(lacking)} weights of {type(loaded).__name__} by the names and "
            f"shapes of config.json, such as {lacking[0]}; copy the model again, or save it with "
            "save_pretrained"
        )
    return loaded
