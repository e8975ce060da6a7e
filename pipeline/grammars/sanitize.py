"""Sanitize retrieved text before it is inserted into a policy's context.

A document may contain any text, including ``</Reference>``, ``Final answer:`` at the start of a line
or ``<|im_end|>``. Inserted unchanged, such text would close the observation, forge a step or switch
the chat role; released code of comparable systems has this defect. `sanitize` rewrites these strings
with HTML character references: they look the same, but no grammar or chat template reads them as
tags. Whitespace runs become single spaces, so every document is one line. All other text is
unchanged, and sanitizing twice gives the same text as sanitizing once. The time grows linearly with
the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from pipeline.grammars.control_tokens import escape_all, token_patterns

# Tag names of the grammars in this package, of Search-R1 and R1-Searcher, and the sequence markers
# of chat templates and pre-trained tokenizers.
_TAGS = (
    "reference|think|search|information|answer|step|reasoning|context|conclusion|final_answer"
    "|knowledge|query|summary|subquery|tool|tool_call|tool_response|document|documents"
    "|s|bos|eos|pad|unk|cls|sep|mask|start_of_turn|end_of_turn|system|user|assistant"
)
# What splits lines is left out of the white space in front of a marker, which starts after it.
_BREAKS = r"\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_MARKERS = re.compile(
    rf"(^|[{_BREAKS}])([^\S\n{_BREAKS}]*)(Step\s+[0-9]+|Important\s+entity|Subquery|Summary|Final\s+answer|Evidence\s+[0-9]+)"
    r"(\s*):",
    re.IGNORECASE | re.MULTILINE,
)
# The end of a tag is optional: in "<think <think>>" the outer tag would have one only after the inner
# tag is escaped, and a pass for each level takes quadratic time.
_CONTROL = (
    rf"<\s*/?\s*(?:{_TAGS})\b(?:[^<>]*>)?"  # grammar tags, with or without attributes
    r"|<\s*[|\uff5c](?:[^<>]*[|\uff5c]\s*>)?"  # <|im_end|>, <|eot_id|>; some use a full-width bar
    r"|<<\s*/?\s*SYS\s*>>"
    r"|\[\s*/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\s*\]"
)


@cache
def _pattern(special_tokens: tuple[str, ...]) -> re.Pattern[str]:
    parts = [f"(?-i:{token})" for token in token_patterns(special_tokens)]
    return re.compile("|".join([*parts, _CONTROL]), re.IGNORECASE)


def sanitize(text: str, special_tokens: Iterable[str] = ()) -> str:
    """``text`` on one line, without grammar tags, step markers at line starts or chat tokens."""
    marked = _MARKERS.sub(r"\1\2\3\4&#58;", text)
    return escape_all(_pattern(tuple(special_tokens)), " ".join(marked.split()))
