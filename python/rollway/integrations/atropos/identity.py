"""Identity: the name of an item of an Atropos environment. The same item has the same name in every process.

Items may be anything, most often a row of a dataset or a tuple of prompt and answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

_NAMES = ("instance_id", "id", "task_id", "problem_id", "question_id", "uid", "uuid", "idx", "index")
_LONGEST = 64


def instance_id(item: Any) -> str:
    """The id of an item.

    A whole number, or a text of up to 64 characters, is its own id. The id of a mapping is the first it has of
    ``instance_id``, ``id``, ``task_id``, ``problem_id``, ``question_id``, ``uid``, ``uuid``, ``idx`` and ``index``. The
    id of everything else is a hash of its content. `TypeError` if the content cannot be hashed the same way in every
    process: then give ``with_transport`` an ``instance_id`` of your own.

    >>> instance_id(17), instance_id({"id": "math-3", "question": "…"})
    ('17', 'math-3')
    >>> instance_id((frozenset({("role", "user"), ("content", "2+2")}), "4"))
    '8d6c663ad319798b'
    """
    if isinstance(item, Mapping):
        for name in _NAMES:
            if _is_name(item.get(name)):
                return str(item[name])
    elif _is_name(item):
        return str(item)
    text = json.dumps(_canonical(item), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def as_text(name: Any) -> str:
    """The name of an instance in a key: text, or a whole number as text. `TypeError` for anything else.

    >>> as_text(17)
    '17'
    """
    if isinstance(name, str):
        with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate cannot be sent
            name.encode()
            return name
    elif _is_name(name):
        return str(name)
    raise TypeError(f"the instance_id of an item must be text or a whole number, not {name!r}")


def _is_name(value: Any) -> bool:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy number
        value = value.item()
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, str) and 0 < len(value) <= _LONGEST)


def _canonical(value: Any) -> Any:
    """The content in a fixed order: the order of sets and dicts does not count."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, Mapping):
        pairs = [[_canonical(key), _canonical(entry)] for key, entry in value.items()]
        return ["dict", sorted(pairs, key=json.dumps)]
    if isinstance(value, AbstractSet):
        return ["set", sorted(map(_canonical, value), key=json.dumps)]
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    if hasattr(value, "tolist"):
        return _canonical(value.tolist())
    if hasattr(value, "model_dump"):
        return _canonical(value.model_dump())
    raise TypeError(
        f"an item holds a {type(value).__name__}, which has no id. Use with_transport(Env, instance_id=lambda item: …)"
    )
