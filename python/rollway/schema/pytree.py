"""Schema: what one sample looks like, as a flat list of named leaves.

It flattens pytrees, checks and converts arrays. Native code calls it once per handle, and then only for samples that
are not plain dicts, tuples or lists of exact arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import threading
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any, NoReturn, Protocol

import numpy as np
import optree

from rollway._core import Plan, read_schema
from rollway.errors import ForeignSchema, SchemaMismatch
from rollway.schema.arrays import Casting, as_array, as_leaf, check_casting, describe
from rollway.schema.leaves import WHOLE, Leaf, as_example

NAMESPACE = "rollway"
_MAX_DIMENSIONS = 63  # numpy's limit, less one
_MAX_QUOTED = 300  # characters of another process's text, in a message
_MAX_FIELDS = 20
_registered: set[type] = set()
_registering = threading.RLock()


def dtype_text(dtype: np.dtype[Any]) -> str | list[Any]:
    """The dtype in a schema's text: a word, or a list of fields ``[name, dtype, dimensions]``.

    Raises ValueError for fields that overlap, are out of order, or have a title that is not text.
    """
    if dtype.fields is not None:
        return _fields(dtype)
    return dtype.name if dtype.kind == "V" or _is_nameless(dtype) else dtype.str


def _is_nameless(dtype: np.dtype[Any]) -> bool:
    """Whether only its name identifies it: numpy shows dtypes of ml_dtypes like others ('<V2', '<W4')."""
    return dtype.str[1] in "VW" and dtype.type is not np.void


def _fields(dtype: np.dtype[Any]) -> list[Any]:
    """The fields of a structured dtype."""
    described: list[Any] = []
    given: Any = np.lib.format.dtype_to_descr(dtype)
    for name, form, *shape in given:
        key = name[1] if isinstance(name, tuple) else name
        if isinstance(name, tuple) and not isinstance(name[0], str):
            raise ValueError(f"the title of field {key!r} is not text")
        inner = dtype.fields[key][0].base if key and dtype.fields is not None else None  # no name: padding
        if inner is not None and inner.fields is not None:
            form = _fields(inner)
        elif inner is not None and _is_nameless(inner):
            form = inner.name
        described.append([list(name) if isinstance(name, tuple) else name, form, list(*shape)])
    return described


class Schema:
    """The leaves of one sample, in the order in which optree flattens it.

    >>> import numpy as np
    >>> schema = Schema.of({"obs": np.zeros(4, np.float32), "done": np.bool_(False)})
    >>> [f"{leaf.name}: {leaf}" for leaf in schema.leaves]
    ['done: bool[]', 'obs: float32[4]']
    """

    def __init__(self, leaves: list[Leaf], treedef: optree.PyTreeSpec, casting: Casting = "no") -> None:
        check_casting(casting)
        self.leaves = leaves
        self.treedef = treedef
        self.casting: Casting = casting

    @classmethod
    def of(cls, example: Any, casting: Casting = "no") -> Schema:
        """The schema of an example, whose values do not matter. Leaves may have any of the forms of `leaves`."""
        register_dataclasses(example)
        example = as_example(example, NAMESPACE)
        paths, values, treedef = optree.tree_flatten_with_path(example, namespace=NAMESPACE)
        if not values:
            raise SchemaMismatch("the example has no arrays in it: give one sample, like {'obs': np.zeros(4)}")
        leaves = []
        for path, value in zip(paths, values, strict=True):
            name = path_text(path)
            array = as_array(value, name, None)
            if array.dtype.hasobject or array.dtype.itemsize == 0:
                raise SchemaMismatch(
                    f"leaf '{name}' has dtype {array.dtype}, which has no fixed size in memory. "
                    "Use a numeric, bool, fixed-length string or structured dtype"
                )
            if array.ndim > _MAX_DIMENSIONS:
                raise SchemaMismatch(
                    f"leaf '{name}' has {array.ndim} dimensions: at most {_MAX_DIMENSIONS}, as a batch has one more"
                )
            try:
                dtype_text(array.dtype)
            except ValueError:
                raise SchemaMismatch(
                    f"leaf '{name}' has dtype {array.dtype}, whose fields overlap, are out of order, or have titles "
                    "that are not text. Declare them in the order of their offsets"
                ) from None
            leaves.append(Leaf(name, array.dtype, array.shape))
        return cls(leaves, treedef, casting)

    @functools.cached_property
    def text(self) -> bytes:
        """The schema as text, for the header of a segment: paths, dtypes and shapes."""
        rows = [[leaf.name, dtype_text(leaf.dtype), list(leaf.shape)] for leaf in self.leaves]
        return json.dumps(rows, separators=(",", ":")).encode()

    def plan(self) -> Plan:
        """The schema, compiled for native code."""
        leaves = [(leaf.dtype, list(leaf.shape), leaf.row_bytes) for leaf in self.leaves]
        return Plan(self, self.text, leaves, _native_tree(self.treedef), self.casting == "same_kind")

    def unflatten(self, leaves: list[Any]) -> Any:
        """Puts arrays back into the structure of the example."""
        return optree.tree_unflatten(self.treedef, leaves)

    def conform(self, data: Any, stacked: bool) -> list[np.ndarray[Any, Any]]:
        """The leaves of ``data`` as exact, contiguous arrays. Raises `SchemaMismatch` that names what does not fit.

        ``stacked``: every leaf has one more dimension in front, the same for all.
        """
        try:
            values = self.treedef.flatten_up_to(data)
        except ValueError:
            self._structure_differs(data)
        arrays = [self._fit(leaf, value, stacked) for leaf, value in zip(self.leaves, values, strict=True)]
        if stacked:
            rows = {leaf.name: array.shape[0] for leaf, array in zip(self.leaves, arrays, strict=True)}
            if len(set(rows.values())) > 1:
                raise SchemaMismatch(f"the leaves hold different numbers of samples: {rows}")
        return [np.ascontiguousarray(array) for array in arrays]

    def _fit(self, leaf: Leaf, value: Any, stacked: bool) -> np.ndarray[Any, Any]:
        dims: tuple[int | str, ...] = ("n", *leaf.shape) if stacked else leaf.shape
        array = as_leaf(value, leaf.name, leaf.dtype, dims, self.casting)
        shape = array.shape[1:] if stacked else array.shape
        if stacked and array.ndim == 0:
            raise SchemaMismatch(f"leaf '{leaf.name}' is {array.dtype}[]: send_many needs a leading dimension")
        if array.dtype != leaf.dtype or shape != leaf.shape:
            given = describe(array.dtype, ("n", *shape) if stacked else shape)
            wanted = describe(leaf.dtype, ("n", *leaf.shape) if stacked else leaf.shape)
            advice = "Cast or reshape it before sending, or change the example on both sides"
            if shape == () and leaf.shape and array.dtype == leaf.dtype:
                advice = f"For single numbers use np.{leaf.dtype}(0) in the example, on both sides"
            raise SchemaMismatch(f"leaf '{leaf.name}' is {given} here but {wanted} in the schema. {advice}")
        return array

    def _structure_differs(self, data: Any) -> NoReturn:
        register_dataclasses(data)
        given = {path_text(path) for path in optree.tree_paths(data, namespace=NAMESPACE)}
        wanted = {leaf.name for leaf in self.leaves}
        if given == wanted:
            raise SchemaMismatch(
                "the sample has the leaves of the schema in another structure: "
                f"expected {self.treedef}, got {optree.tree_structure(data, namespace=NAMESPACE)}"
            )
        raise leaves_differ("sample", wanted, given)

    def explain(self, foreign: ForeignSchema) -> SchemaMismatch:
        """The error that says how another schema differs from this one."""
        return explain(self.text, foreign)


class _Explains(Protocol):
    def explain(self, foreign: ForeignSchema) -> SchemaMismatch: ...


@contextlib.contextmanager
def explained(schema: _Explains, otherwise: str = "") -> Iterator[None]:
    """Raises how another schema differs from this one, if the core finds that in the block.

    ``otherwise``: what else can be done about it.
    """
    try:
        yield
    except ForeignSchema as foreign:
        mismatch = schema.explain(foreign)
        raise (SchemaMismatch(f"{mismatch}, or {otherwise}") if otherwise else mismatch) from None


def leaves_differ(what: str, wanted: Set[str], given: Set[str]) -> SchemaMismatch:
    """The error that says which leaves are missing and which are unexpected."""
    names = (("missing", wanted - given), ("unexpected", given - wanted))
    parts = [f"{fault} {', '.join(map(repr, sorted(leaves)))}" for fault, leaves in names if leaves]
    return SchemaMismatch(f"the {what} does not have the leaves of the schema: {'; '.join(parts)}")


def explain(text: bytes, foreign: ForeignSchema, given: str = "example") -> SchemaMismatch:
    """The error that says how another schema differs from this text. ``given``: what both sides are started with."""
    where, advice = foreign.place, f"start both sides with the same {given}"
    try:
        theirs = {path: leaf for path, *leaf in read_schema(foreign.text)}
    except SchemaMismatch as unreadable:
        return SchemaMismatch(f"the schema {where} cannot be read: {unreadable}")
    ours = {path: leaf for path, *leaf in read_schema(text)}
    for path in [*ours, *theirs]:
        here, there = ours.get(path), theirs.get(path)
        if here != there:
            differs = f"leaf '{short(path)}' is {_described(here)} here but {_described(there)} {where}"
            return SchemaMismatch(f"{differs}{'. Cast before send(), or' if here and there else ':'} {advice}")
    return SchemaMismatch(f"the leaves are the same {where}, but in another order ({short(list(theirs))}): {advice}")


def short(said: object) -> str:
    """Text of another process, shortened for a message."""
    text = str(said)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


def _described(leaf: Sequence[Any] | None) -> str:
    """A leaf from `read_schema`, in words."""
    return "missing" if leaf is None else short(describe(_readable(leaf[0]), leaf[1]))


def _readable(dtype: str | list[Any]) -> str:
    """``<f4`` becomes ``float32``; another byte order, and an unknown dtype, stay unchanged."""
    if isinstance(dtype, list):
        shown = [str((name, _readable(form), *([dims] if dims else []))) for name, form, dims in dtype[:_MAX_FIELDS]]
        return f"[{', '.join([*shown, '…'] if len(dtype) > _MAX_FIELDS else shown)}]"
    if dtype[0] not in "<>|":
        return dtype
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        return dtype
    return known.name if known.isnative else dtype


def known_dtype(described: str | list[Any]) -> np.dtype[Any]:
    """The dtype of a description from `read_schema`.

    Raises ImportError, AttributeError, TypeError or ValueError for one that this numpy or ml_dtypes does not have.
    """
    if isinstance(described, list):
        return _structured(described)
    if described.startswith("void"):  # numpy's name of a dtype of plain bytes, with their bits
        return np.dtype(f"V{int(described[4:]) // 8}")
    if described[0] in "<>|" and described != "<f1":
        return np.dtype(described)
    import ml_dtypes  # bfloat16 and float8

    beyond: np.dtype[Any] = np.dtype(getattr(ml_dtypes, "float8_e5m2" if described == "<f1" else described))
    return beyond


def _structured(fields: list[Any]) -> np.dtype[Any]:
    parts: dict[str, list[Any]] = {"names": [], "formats": [], "offsets": [], "titles": []}
    end = 0
    for name, form, dims in fields:
        title, key = name if isinstance(name, tuple) else (None, name)
        inner: np.dtype[Any] = np.dtype((known_dtype(form), dims)) if dims else known_dtype(form)
        if key:  # no name: padding
            for part, value in zip(parts, (key, inner, end, title), strict=True):
                parts[part].append(value)
        end += inner.itemsize
    return np.dtype({**parts, "itemsize": end})  # type: ignore[call-overload,no-any-return]


def path_text(path: tuple[Any, ...]) -> str:
    """The name of a leaf, made of the keys that lead to it."""
    return "/".join(map(str, path)) if path else WHOLE


def _native_tree(spec: optree.PyTreeSpec) -> Any:
    """The structure for native code: leaf numbers in dicts, tuples, lists, dataclasses; ``None`` for other classes."""
    counter = iter(range(spec.num_leaves))

    def node(spec: optree.PyTreeSpec) -> Any:
        if spec.is_leaf():
            return next(counter)
        children = [node(child) for child in spec.children()]
        if spec.type is dict and all(type(key) is str for key in spec.entries()):
            # Leaves are numbered in the order of sorted keys; a dict that is built has the order of the example's.
            one_level: Any = spec.one_level()
            return ("dict", None, list(one_level.unflatten(children).items()))
        if spec.type is list:
            return ("list", None, children)
        if spec.type is tuple or optree.is_namedtuple_class(spec.type):
            return ("tuple", spec.type, children)
        if spec.type in _registered:
            return _native_dataclass(spec.type, spec.entries(), children)
        return None

    return node(spec)


def _native_dataclass(cls: type, names: list[str], children: list[Any]) -> Any:
    """A dataclass whose fields native code can read: in slots, or in ``__dict__`` with no property in front."""
    if inspect.getattr_static(cls, "__getattribute__") is not object.__getattribute__:
        return None
    found = [inspect.getattr_static(cls, name, None) for name in names]
    slots = [value if _is_slot(value) else None for value in found]
    if any(slot is None and hasattr(value, "__set__") for slot, value in zip(slots, found, strict=True)):
        return None  # A property, for instance.
    return ("object", cls, list(zip(names, slots, children, strict=True)))


def _is_slot(value: Any) -> bool:
    """Whether it is a slot that a class in Python declared. Those of C classes may make a new object at each look."""
    if not isinstance(value, types.MemberDescriptorType):
        return False
    declared = vars(value.__objclass__).get("__slots__", ())
    return value.__name__ in ((declared,) if isinstance(declared, str) else declared)


def register_dataclasses(tree: Any) -> None:
    """Registers plain dataclasses as pytree nodes, which optree would take for leaves."""
    with _registering:
        while found := {type(leaf) for leaf in _dataclasses(tree)} - _registered:
            for cls in found:
                optree.register_pytree_node(
                    cls, _flatten_dataclass, functools.partial(_make_dataclass, cls), namespace=NAMESPACE
                )
                _registered.add(cls)


def _dataclasses(tree: Any) -> list[Any]:
    """The leaves that are instances of dataclasses."""
    leaves = optree.tree_leaves(tree, namespace=NAMESPACE)
    return [leaf for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)]


def _flatten_dataclass(value: Any) -> tuple[tuple[Any, ...], tuple[str, ...], tuple[str, ...]]:
    names = tuple(field.name for field in dataclasses.fields(value))
    return tuple(getattr(value, name) for name in names), names, names


def _make_dataclass(cls: type, names: tuple[str, ...], children: Any) -> Any:
    made: Any = object.__new__(cls)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(made, name, child)
    return made
