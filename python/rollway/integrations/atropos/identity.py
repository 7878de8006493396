"""Which instance an item of an Atropos environment is: the same text for the same item, in every process.

Environments hand out items of any kind, most often a row of a dataset or a tuple of prompt and answer. An id of its own
is taken as it is; otherwise the content is hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

_NAMES = ("instance_id", "id", "task_id", "problem_id", "question_id", "uid", "uuid", "idx", "index")
_LONGEST = 64


def instance_id(item: Any) -> str:
    """The id of an item.

    A whole number, or a text of up to 64 characters, is its own id; a row (a mapping) is named by the first of
    ``instance_id``, ``id``, ``task_id``, ``problem_id``, ``question_id``, ``uid``, ``uuid``, ``idx`` and ``index`` that
    it has. Everything else is named by a hash of its content. `TypeError` if an item has no content that could be
    compared between processes: give ``with_transport`` an ``instance_id`` of your own then.

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
    """An instance's name, as a key has it: text as it is, a whole number as text. `TypeError` for anything else.

    >>> as_text(17)
    '17'
    """
    if isinstance(name, str) and _is_unicode(name):
        return name
    if _is_name(name) and not isinstance(name, str):
        return str(name)
    raise TypeError(f"the instance_id of an item must be text or a whole number, not {name!r}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character: nobody could read it
        return False
    return True


def _is_name(value: Any) -> bool:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy's
        value = value.item()
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, str) and 0 < len(value) <= _LONGEST)


def _canonical(value: Any) -> Any:
    """The content in one order: sets have none, and a dict's does not count."""
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
        f"an item holds a {type(value).__name__}, of which no id can be made. "
        "Use with_transport(Env, instance_id=lambda item: …)"
    )
