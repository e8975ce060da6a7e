"""Import Luigi without two optional packages, whose functions no task uses.

They take three quarters of the time of its import, which every command on a run needs.
"""

from __future__ import annotations

import sys

_UNUSED = {name: None for name in ("jsonschema", "requests") if name not in sys.modules}
sys.modules.update(_UNUSED)  # type: ignore[arg-type]  # None: as if not installed
import luigi as luigi  # noqa: E402

for _name in _UNUSED:
    del sys.modules[_name]
