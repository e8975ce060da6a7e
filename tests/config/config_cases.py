"""Generated bad configurations: shipped files with damage, and settings with values of the wrong kind.

`cases` yields as many as asked for, the same ones for the same seed. `check` loads one and says
whether it was accepted or refused; anything else than a ConfigError or an InputError, an unreadable
message, or a configuration that a stage's process could not read back raises AssertionError.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Config, load
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.shipped import CONFIGURATIONS, configuration_names
from tests.config.settings_walk import blocks, parts

SECRET = "sk-secret0123456789"  # has the shape of an API key
# Values as YAML. Those of the first group are wrong in every setting.
ALWAYS_WRONG = [
    ".nan", ".inf", "-.inf", "1e999", "9" * 5000, "-" + "9" * 30, "0x" + "f" * 40, '"\\0"', '"\\x1b[31m"',
    '"\\ud800"', '"\\UFFFFFFFF"', "[" * 400 + "]" * 400, "{a: " * 400 + "1" + "}" * 400,
    "!!python/name:os.system x", "*missing", "{x: 1, x: 2}", "{? [a] : 1}", "{null: 1}", "{1.5: 2}",
]  # fmt: skip
MOSTLY_WRONG = [
    "true", "no", '"3"', '"1e-5"', "3.0", "-1", "-0.5", "0", "0.0", "-0.0", "1e-320", "1e300", "1000000000000",
    "null", '""', '" "', ".", "..", "/", "a/b", "-x", "2020-01-01", "1:30", "010", "[]", "{}", "[[]]",
    "[1, x]", "[-1]", "[true]", '["3"]', "{3: -1}", '{"3": 1, 3: 2}', "{3: 0}", "{-3: 1}", "{a: b}", "{3: true}",
    "x" * 300, "/".join(["x" * 200] * 30), f"http://me:{SECRET}@x/v1", f"http://x/?k={SECRET}", "http://[::1",
    "http://x:99999999", "http://x:abc/v1", f"[{SECRET}]", f"{{{SECRET}: 1}}", '"é\\u202e"', "/dev/null",
    "&a [x]", "|\n text\n", "!x y", "@x", "`x", "%x", "'", "{", "- x", "? x", "# x",
]  # fmt: skip
USUAL = ["0", "1", "2", "0.5", "1e-3", "true", "x", "[1, 2]", "{3: 1}", "null", "auto", "none"]
SMALL = """
data: {}
corpus: {files: [{path: corpus.jsonl}]}
graph: {source: titles, endpoint: &endpoint {base_url: http://x/v1, model: m}}
index: {embedder: {model: m}}
retrieval: {reranker: {kind: biencoder}}
model: {base: m}
prompt: {system: s}
sft_data: {sizes: {3: 1}}
sft: {learning_rate: 1e-3, batch_size: 1}
dpo: {learning_rate: 1e-3, batch_size: 1}
grpo: {learning_rate: 1e-3, batch_size: 1}
judges: &judges {over: &judge {backend: openai, endpoint: *endpoint}, under: *judge}
evaluation: {judges: *judges}
sampling: {}
"""


@dataclass(frozen=True)
class Case:
    """A configuration file and overrides; ``wrong`` means that they must be refused."""

    content: bytes
    overrides: tuple[str, ...] = ()
    wrong: bool = False


def settings(block: Any = Config, above: str = "") -> list[str]:
    """The dotted keys of all settings; those of blocks in lists are left out."""
    keys = []
    for name, field in block.model_fields.items():
        keys.append(above + name)
        for kind, wrap in parts(field.annotation):
            if kind in blocks(Config) and wrap(0) == 0:
                keys += settings(kind, f"{above}{name}.")
    return keys


KEYS = settings()


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yield ``count`` cases; nine of ten change one setting, which is fast to load."""
    source = random.Random(seed)
    shipped = [  # with bases that are found from any directory
        (CONFIGURATIONS / f"{name}.yaml").read_bytes().replace(b"base: ../", b"base: ")
        for name in configuration_names()
    ]
    for _ in range(count):
        kind = source.random()
        if kind < 0.6:
            yield _in_file(source)
        elif kind < 0.9:
            yield _in_override(source)
        else:
            yield _damaged(source, source.choice(shipped))


def _value(source: random.Random) -> tuple[str, bool]:
    values = source.choices([USUAL, MOSTLY_WRONG, ALWAYS_WRONG], [4, 3, 2])[0]
    return source.choice(values), values is ALWAYS_WRONG


def _in_file(source: random.Random) -> Case:
    value, wrong = _value(source)
    parents = source.choice(KEYS).split(".")
    if source.random() < 0.1:
        parents[source.randrange(len(parents))] = source.choice(["x", "3", '"\\e"', "null", '""'])
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(parents)]
    return Case(f"base: small.yaml\n{chr(10).join(lines)} {value}\n".encode(), wrong=wrong)


def _in_override(source: random.Random) -> Case:
    value, wrong = _value(source)
    key = source.choice(KEYS)
    if source.random() < 0.2:
        damage = ["", ".", "a", "a..b", ".a", "name.b.c", "corpus.files.0.path", "x." * 99]
        key, wrong = source.choice(damage), False
    separator = "=" if source.random() < 0.95 else ""
    return Case(b"base: small.yaml\n", (f"{key}{separator}{value}",), wrong and separator != "")


def _damaged(source: random.Random, text: bytes) -> Case:
    kind = source.randrange(4)
    at = source.randrange(len(text))
    if kind == 0:
        return Case(text[:at])
    if kind == 1:
        junk = source.choice([b"\0", b"\xff", b"\t", b"\n", b"[", b"}", b": ", b"*", b"&", b"'"])
        return Case(text[:at] + junk + text[at:], wrong=junk in (b"\0", b"\xff"))
    if kind == 2:
        return Case(text[:at] + bytes([source.randrange(256)]) + text[at + 1 :])
    key = source.choice(re.findall(rb"^[a-z_]+:", text, re.MULTILINE))
    return Case(text + b"\n" + key + b" null\n", wrong=True)  # the key is there twice


def check(case: Case, directory: Path) -> bool:
    """Load a case in ``directory``; returns whether it was accepted."""
    (directory / "small.yaml").write_text(SMALL)
    file = directory / "case.yaml"
    file.write_bytes(case.content)
    try:
        config = load(file, case.overrides)
    except (ConfigError, InputError) as error:
        message = str(error)
        assert len(message) < 5000
        assert all(line.isprintable() for line in message.splitlines()), ascii(message)
        assert SECRET not in message, message
        return False
    except Exception as error:
        raise AssertionError(f"{case} gives {type(error).__name__}: {error}") from error
    assert not case.wrong, f"{case} is accepted"
    assert SECRET not in config.model_dump_json(), f"{case} is accepted"
    sent = json.dumps(config.model_dump(mode="json"), allow_nan=False)  # to a stage's process
    assert Config.model_validate(json.loads(sent)) == config
    json.dumps(config.deciding(), allow_nan=False)
    return True
