"""WeightTree: weights as a flat list of named leaves, and where the bytes of each are.

It reads torch state dicts, numpy and JAX trees, checks them against the leaves in shared memory, and says where to copy
from and to. It makes copies of its own only where it must. It uses torch only if the program has imported it, and knows
nothing of segments and versions.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import optree

from rollway._core import read_weight_schema
from rollway.errors import ForeignSchema, SchemaMismatch
from rollway.schema.arrays import as_array, describe
from rollway.schema.pytree import NAMESPACE, leaves_differ, path_text, register_dataclasses, short

_BEYOND_NUMPY = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Bytes of the dtypes that numpy knows only with ml_dtypes; torch and ml_dtypes call them the same."""

_OWN_MAPPINGS = (dict, OrderedDict, defaultdict)
_registered: set[type] = set()


class WeightLeaf(NamedTuple):
    """One array of the weights: where it is in the tree, and what it is."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return _itemsize(self.dtype) * math.prod(self.shape)

    def __str__(self) -> str:
        return describe(self.dtype, self.shape)


class Places(NamedTuple):
    """Where the bytes of some leaves are."""

    leaves: list[int]
    addresses: list[int]
    held: list[Any]
    """The objects that keep the memory alive."""
    finish: dict[int, Callable[[], None]]
    """By index into the lists: what to call after that leaf was copied."""
    on_gpus: list[tuple[int, int, list[int], bool]]
    """For each GPU that has some of the leaves: its number, the caller's stream there, the leaves, and whether they lie
    there as in a buffer.
    """


class _Place(NamedTuple):
    """Where the bytes of one leaf are; `Places` says what the rest is."""

    address: int
    held: Any
    finish: Callable[[], None] | None = None
    gpu: int | None = None


class WeightTree:
    """The leaves of weights, sorted by path, and the structure that they are in.

    >>> import numpy as np
    >>> tree = WeightTree.of({"head": {"w": np.zeros((2, 3), np.float32)}, "body": np.zeros(4, np.float16)})
    >>> [f"{leaf.path}: {leaf}" for leaf in tree.leaves]
    ['body: float16[4]', 'head/w: float32[2,3]']
    """

    def __init__(self, leaves: list[WeightLeaf], structure: Any, treedef: optree.PyTreeSpec | None) -> None:
        self.leaves = leaves
        self.structure = structure
        self.treedef = treedef
        self._index = {leaf.path: number for number, leaf in enumerate(leaves)}
        self._order: tuple[optree.PyTreeSpec, list[int]] | None = None
        # Names of a plain dict need no flattening.
        items = structure.get("dict") if isinstance(structure, dict) else None
        self._is_flat = items is not None and all(type(child) is int for _, child in items)

    @classmethod
    def of(cls, values: Any) -> WeightTree:
        """Reads the leaves off weights: a state dict, or any tree of arrays."""
        paths, leaves, treedef = _flatten(values)
        return cls._sorted([_leaf_of(path, value) for path, value in zip(paths, leaves, strict=True)], treedef)

    @classmethod
    def of_shapes(cls, shapes: Any, dtypes: Any) -> WeightTree:
        """From a tree of shapes; ``dtypes`` is one for all, or a mapping from paths. The others are float32."""
        paths, values, treedef = _flatten(shapes, _is_shape)
        by_path = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(paths, dtypes)
        if unknown := set(by_path) - set(paths):
            raise SchemaMismatch(f"dtypes names leaves that param_shapes does not have: {sorted(unknown)}")
        leaves = []
        for path, shape in zip(paths, values, strict=True):
            if not _is_shape(shape):
                raise SchemaMismatch(f"the shape of leaf '{path}' must be a tuple of ints, not {shape!r}")
            dtype = by_path.get(path)
            leaves.append(_checked(path, "float32" if dtype is None else _dtype_name(path, dtype), tuple(shape)))
        return cls._sorted(leaves, treedef)

    @classmethod
    def from_text(cls, text: bytes) -> WeightTree:
        """From the text in a segment, or from another host."""
        try:
            leaves, structure = read_weight_schema(text)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"the schema of these weights cannot be read: {error}") from None
        return cls([WeightLeaf(*leaf) for leaf in leaves], structure, None)

    @classmethod
    def _sorted(cls, leaves: list[WeightLeaf], treedef: optree.PyTreeSpec) -> WeightTree:
        if not leaves:
            raise SchemaMismatch("the weights have no arrays in them: give a state dict, or a tree of arrays")
        order = sorted(range(len(leaves)), key=lambda number: leaves[number].path)
        ranked = [leaves[number] for number in order]
        for one, other in itertools.pairwise(ranked):
            if one.path == other.path:
                raise SchemaMismatch(f"two leaves are called '{one.path}': rename one of them")
        ranks = {number: rank for rank, number in enumerate(order)}
        return cls(ranked, _structure(treedef, iter(range(len(leaves))), ranks), treedef)

    @property
    def text(self) -> bytes:
        """The leaves and the structure, as a segment has them."""
        rows = [[leaf.path, leaf.dtype, list(leaf.shape)] for leaf in self.leaves]
        return json.dumps({"leaves": rows, "tree": self.structure}, separators=(",", ":")).encode()

    def explain(self, foreign: ForeignSchema) -> SchemaMismatch:
        """Says how the weights elsewhere differ from these."""
        where = foreign.place
        try:
            theirs = WeightTree.from_text(foreign.text)
        except SchemaMismatch as unreadable:
            return unreadable
        ours, there = ({leaf.path: str(leaf) for leaf in tree.leaves} for tree in (self, theirs))
        for path in [*ours, *there]:
            here, away = ours.get(path, "missing"), there.get(path, "missing")
            if here != away:
                return SchemaMismatch(
                    f"leaf '{short(path)}' is {here} here but {away} {where}. Make both sides alike, or choose another "
                    "name"
                )
        structures = f"{short(theirs.structure)}, not {short(self.structure)}"
        return SchemaMismatch(f"the leaves are in another structure {where}: {structures}")

    # ── finding the bytes ───────────────────────────────────────────────────────────────────────────────────────────

    def sources(self, values: list[Any]) -> Places:
        """Where to copy all leaves from. Raises `SchemaMismatch` that names the leaf that does not fit."""
        return self._places(range(len(self.leaves)), values, self._source)

    def some_sources(self, values: Any) -> Places:
        """Where to copy those leaves from that ``values`` has."""
        paths, leaves, _ = _flatten(values)
        if unknown := sorted(set(paths) - self._index.keys()):
            raise SchemaMismatch(f"the weights have no leaf {', '.join(map(repr, unknown))}")
        return self._places([self._index[path] for path in paths], leaves, self._source)

    def targets(self, values: list[Any]) -> Places:
        """Where to copy all leaves to, in place."""
        return self._places(range(len(self.leaves)), values, self._target)

    def fresh(self) -> tuple[list[np.ndarray[Any, Any]], Places]:
        """New arrays for all leaves, and where they are."""
        arrays: list[np.ndarray[Any, Any]] = [np.empty(leaf.shape, numpy_dtype(leaf.dtype)) for leaf in self.leaves]
        return arrays, self._places(range(len(self.leaves)), arrays, self._target)

    def build(self, arrays: list[Any]) -> Any:
        """Puts one array for each leaf into the structure: the writer's own in its process, else of dicts, lists and
        tuples.
        """
        if self.treedef is None:
            return _rebuild(self.structure, arrays)
        return optree.tree_unflatten(self.treedef, [arrays[number] for number in self._order_of(self.treedef)])

    def build_like(self, example: Any, arrays: list[Any]) -> Any:
        """Puts one array for each leaf into the structure of ``example``."""
        treedef = _flatten(example)[2]
        return optree.tree_unflatten(treedef, [arrays[number] for number in self._order_of(treedef)])

    def values(self, values: Any) -> list[Any]:
        """The values of all leaves, in our order. Raises `SchemaMismatch` if they are not the same leaves."""
        if self._is_flat and isinstance(values, _OWN_MAPPINGS) and len(values) == len(self.leaves):
            try:
                return [values[leaf.path] for leaf in self.leaves]
            except KeyError:
                pass  # nested, or wrong: the code below finds out
        _, found, treedef = _flatten(values)
        ordered: list[Any] = [None] * len(self.leaves)
        for number, value in zip(self._order_of(treedef), found, strict=True):
            ordered[number] = value
        return ordered

    def _order_of(self, treedef: optree.PyTreeSpec) -> list[int]:
        """Our numbers for the leaves of a tree, in its own order; raises when they are not the same leaves."""
        if self._order is not None and self._order[0] == treedef:
            return self._order[1]
        paths = [path_text(path) for path in treedef.paths()]
        if set(paths) != self._index.keys():
            raise leaves_differ("tree of weights", self._index.keys(), set(paths))
        order = [self._index[path] for path in paths]
        self._order = (treedef, order)
        return order

    def _places(self, numbers: Any, values: list[Any], place: Callable[[WeightLeaf, Any], _Place]) -> Places:
        places = Places(list(numbers), [], [], {}, [])
        gpus: dict[int, list[int]] = {}
        torch = sys.modules.get("torch")
        for at, (number, value) in enumerate(zip(places.leaves, values, strict=True)):
            leaf = self.leaves[number]
            if torch is not None and _is_tensor_of(leaf, value, torch):
                gpu = value.get_device() if value.is_cuda else None
                address, held, finish = value.data_ptr(), value, None
            else:
                address, held, finish, gpu = place(leaf, value)
            places.addresses.append(address)
            places.held.append(held)
            if finish is not None:
                places.finish[at] = finish
            if gpu is not None:
                gpus.setdefault(gpu, []).append(number)
        for gpu, leaves in gpus.items():
            places.on_gpus.append((gpu, sys.modules["torch"].cuda.current_stream(gpu).cuda_stream, leaves, False))
        return places

    def _source(self, leaf: WeightLeaf, value: Any) -> _Place:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if _torch_name(value.dtype) != leaf.dtype or value.shape != leaf.shape:
                raise _differs(leaf, _torch_name(value.dtype), value.shape)
            value = _plain(value, torch, leaf)
            return _Place(value.data_ptr(), value, None, value.get_device() if value.is_cuda else None)
        if not isinstance(value, np.ndarray):
            wanted = numpy_dtype(leaf.dtype) if isinstance(value, bool | int | float | complex) else None
            value = as_array(value, leaf.path, wanted)
        if _numpy_name(leaf.path, value.dtype) != leaf.dtype or value.shape != leaf.shape:
            raise _differs(leaf, value.dtype.name, value.shape)
        value = np.ascontiguousarray(value) if value.shape else value
        return _Place(_address(value), value)

    def _target(self, leaf: WeightLeaf, value: Any) -> _Place:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if _torch_name(value.dtype) != leaf.dtype or value.shape != leaf.shape:
                raise _differs(leaf, _torch_name(value.dtype), value.shape)
            if value.device.type == "meta" or value.layout is not torch.strided:
                raise SchemaMismatch(
                    f"leaf '{leaf.path}' has no memory of its own to read into: {value.device}, {value.layout}"
                )
            if _overlaps(leaf.shape, value.stride(), 1):
                raise _folded(leaf, value.stride(), "clone")
            # Not contiguous, or on a device that is no GPU of CUDA's: through a tensor that is neither.
            device = value.device if _is_direct(value, torch) else None
            scratch = torch.empty(leaf.shape, dtype=value.dtype, device=device)
            gpu = scratch.get_device() if scratch.is_cuda else None
            return _Place(scratch.data_ptr(), scratch, lambda: value.data.copy_(scratch), gpu)
        if not isinstance(value, np.ndarray) or not value.flags.writeable:
            raise SchemaMismatch(
                f"leaf '{leaf.path}' ({type(value).__name__}) cannot be changed in place. "
                "Use writable numpy arrays or torch tensors, or read_weights(), which makes new arrays"
            )
        if _numpy_name(leaf.path, value.dtype) != leaf.dtype or value.shape != leaf.shape:
            raise _differs(leaf, value.dtype.name, value.shape)
        if value.flags.c_contiguous:
            return _Place(_address(value), value)
        if _overlaps(leaf.shape, value.strides, value.itemsize):
            raise _folded(leaf, value.strides, "copy")
        array = np.empty(leaf.shape, value.dtype)
        return _Place(_address(array), array, lambda: np.copyto(value, array))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of that name; for bfloat16 and its like, that of ml_dtypes."""
    if name not in _BEYOND_NUMPY:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise SchemaMismatch(
            f"numpy has no {name}: install ml_dtypes, or read into torch tensors with read_weights_into()"
        ) from error
    beyond: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return beyond


def _flatten(values: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[str], list[Any], Any]:
    leaves, treedef = optree.tree_flatten(values, is_leaf, namespace=NAMESPACE)
    if any(isinstance(leaf, Mapping) or hasattr(leaf, "__dataclass_fields__") for leaf in leaves):
        register_dataclasses(values)
        _register_mappings(values)
        leaves, treedef = optree.tree_flatten(values, is_leaf, namespace=NAMESPACE)
    return [path_text(path) for path in treedef.paths()], leaves, treedef


def _register_mappings(values: Any) -> None:
    """Makes mappings that are no dicts, like flax's FrozenDict, into pytree nodes."""
    while True:
        leaves = optree.tree_leaves(values, namespace=NAMESPACE)
        found: set[Any] = {type(leaf) for leaf in leaves if isinstance(leaf, Mapping)} - _registered
        if not found:
            return
        for cls in found:
            optree.register_pytree_node(cls, _flatten_mapping, _mapping_maker(cls), namespace=NAMESPACE)
            _registered.add(cls)


def _flatten_mapping(value: Any) -> tuple[tuple[Any, ...], tuple[str, ...], tuple[str, ...]]:
    keys = tuple(sorted(value))
    return tuple(value[key] for key in keys), keys, keys


def _mapping_maker(cls: Any) -> Callable[[Any, Any], Any]:
    return lambda keys, children: cls(dict(zip(keys, children, strict=True)))


def _structure(spec: optree.PyTreeSpec, counter: Any, ranks: dict[int, int]) -> Any:
    """The structure as JSON: numbers of leaves in dicts, lists and tuples; other nodes are dicts of their fields."""
    if spec.is_leaf():
        return ranks[next(counter)]
    if spec.type is type(None):
        return None
    children = [_structure(child, counter, ranks) for child in spec.children()]
    if spec.type in (list, tuple):
        return {spec.type.__name__: children}
    entries = getattr(spec.type, "_fields", None) or spec.entries()
    keys = [key if isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**63) else str(key) for key in entries]
    pairs = [[key, child] for key, child in zip(keys, children, strict=True)]
    return {"dict": sorted(pairs, key=lambda pair: str(pair[0]))}


def _rebuild(node: Any, arrays: list[Any]) -> Any:
    if node is None or type(node) is int:
        return None if node is None else arrays[node]
    ((kind, children),) = node.items()
    if kind == "dict":
        return {key: _rebuild(child, arrays) for key, child in children}
    built = [_rebuild(child, arrays) for child in children]
    return tuple(built) if kind == "tuple" else built


def _leaf_of(path: str, value: Any) -> WeightLeaf:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _checked(path, _torch_name(value.dtype), tuple(value.shape))
    array = as_array(value, path, None)
    return _checked(path, _numpy_name(path, array.dtype), array.shape)


def _checked(path: str, dtype: str, shape: tuple[int, ...]) -> WeightLeaf:
    try:
        _itemsize(dtype)
    except TypeError:
        raise SchemaMismatch(f"leaf '{path}' has dtype {dtype}, whose bytes cannot be shared") from None
    return WeightLeaf(path, dtype, tuple(int(size) for size in shape))


def _itemsize(dtype: str) -> int:
    return _BEYOND_NUMPY.get(dtype) or np.dtype(dtype).itemsize


def _is_shape(value: Any) -> bool:
    """Whether it is a shape: a tuple (or ``torch.Size``) of ints."""
    return isinstance(value, tuple) and all(isinstance(size, int | np.integer) for size in value)


def _dtype_name(path: str, dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in _BEYOND_NUMPY:
        return dtype
    if str(dtype).startswith("torch."):
        return _torch_name(dtype)
    return _numpy_name(path, np.dtype(dtype))


@functools.cache
def _torch_name(dtype: Any) -> str:
    """``torch.float32`` is called float32, as in numpy."""
    return str(dtype)[6:]


def _numpy_name(path: str, dtype: np.dtype[Any]) -> str:
    if not dtype.isnative or (dtype.kind not in "biufc" and dtype.name not in _BEYOND_NUMPY):
        raise SchemaMismatch(f"leaf '{path}' has dtype {dtype!r}: weights are numbers, in this machine's byte order")
    return dtype.name


def _is_tensor_of(leaf: WeightLeaf, value: Any, torch: Any) -> bool:
    """Whether it is a tensor like the leaf, whose bytes, in order and in one piece, are its values."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and _torch_name(value.dtype) == leaf.dtype
        and value.shape == leaf.shape
        and _is_direct(value, torch)
        and value.is_contiguous()
        and not value.is_neg()
        and not value.is_conj()
    )


def _is_direct(tensor: Any, torch: Any) -> bool:
    """Whether the core copies from and to the tensor's device: the host, or a GPU of CUDA's."""
    return bool(tensor.is_cpu or (tensor.is_cuda and torch.version.cuda))


def _plain(tensor: Any, torch: Any, leaf: WeightLeaf) -> Any:
    if tensor.device.type == "meta" or tensor.layout is not torch.strided:
        raise SchemaMismatch(
            f"leaf '{leaf.path}' is on {tensor.device} with layout {tensor.layout}: it has no bytes to copy"
        )
    here = tensor.detach() if _is_direct(tensor, torch) else tensor.detach().cpu()
    return here.resolve_neg().resolve_conj().contiguous()


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...], element: int) -> bool:
    """Whether elements share memory, as after ``expand``. ``element``: how large one is, in units of the strides."""
    axes = sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1)
    if 0 in shape:
        return False
    extent = element
    for stride, size in axes:
        if stride < extent:
            break
        extent += stride * (size - 1)
    else:
        return False  # each axis steps over all that those before it span, as in nearly every array
    if axes[0][0] == 0:
        return True
    offsets = np.zeros(1, np.int64)
    for stride, size in axes:
        offsets = np.add.outer(offsets, stride * np.arange(size)).ravel()
    return bool((np.diff(np.sort(offsets)) < element).any())


def _folded(leaf: WeightLeaf, strides: tuple[int, ...], copy: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"leaf '{leaf.path}' overlaps itself: several of its elements are in one place in memory (strides {strides}), "
        f"and cannot be read one by one. Read into a {copy} of it: .{copy}()"
    )


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _differs(leaf: WeightLeaf, dtype: str, shape: Any) -> SchemaMismatch:
    return SchemaMismatch(
        f"leaf '{leaf.path}' is {describe(dtype, tuple(shape))} here but {leaf} in the weights. "
        "Cast or reshape it, or create new weights"
    )
