"""Docstrings as the reference shows them. mkdocstrings loads this as an extension of griffe, which reads the sources.

* The docstrings of native classes are in the compiled extension, and their signatures in its stubs: both are needed.
* Classes that are made by `__new__` show its arguments, and named tuples show their fields.
* Examples (`>>> …`) become blocks of code, and public names in backticks become links to their entries.
"""

import copy
import importlib
import inspect
import re

import griffe

NAME = re.compile(r"(?<![`\w])`(\w+)`(?![`\w])")
NOT_FOR_USERS = "Not for users."


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg, **_):
        """Griffe has read the whole package."""
        native = importlib.import_module(f"{pkg.name}._core")
        for stub in list(pkg["_core"].classes.values()):
            if isinstance(live := getattr(native, stub.name, None), type):
                describe(stub, live)
        links = {name: f"{pkg.name}.{name}" for name in map(str, pkg.exports)}
        for item in everything_in(pkg):
            if item.is_class and "__init__" not in item.members:
                show_arguments(item)
            if item.docstring:
                item.docstring.value = linked(fenced(item.docstring.value), links)


def describe(stub, live):
    """Brings the docstrings of a native class to its stubs; what it inherits from protocols becomes its own."""
    for name, member in stub.inherited_members.items():
        if name not in stub.members and hasattr(live, name):
            stub.set_member(name, copy.copy(member.target))
    if live.__doc__:
        stub.docstring = griffe.Docstring(inspect.cleandoc(live.__doc__), parent=stub)
    for name, member in stub.members.items():
        text = getattr(getattr(live, name, None), "__doc__", None)
        if text and not name.startswith("_") and NOT_FOR_USERS not in text:
            member.docstring = griffe.Docstring(inspect.cleandoc(text), parent=member)


def everything_in(item):
    yield item
    for member in item.members.values():
        if not member.is_alias:
            yield from everything_in(member)


def show_arguments(made):
    if "__new__" in made.members:
        parameters = list(made.members["__new__"].parameters)
    elif "NamedTuple" in map(str, made.bases):
        fields = [field for field in made.attributes.values() if field.annotation and "property" not in field.labels]
        kind = griffe.ParameterKind.positional_or_keyword
        parameters = [griffe.Parameter("self", kind=kind)]
        parameters += [griffe.Parameter(f.name, annotation=f.annotation, kind=kind, default=f.value) for f in fields]
    else:
        return
    made.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))


def fenced(text):
    """Examples end at an empty line, as doctest has it."""
    return re.sub(
        r"(?m)^( *)>>> (?:.+\n?)+", lambda block: f"{block[1]}```pycon\n{block[0].rstrip()}\n{block[1]}```\n", text
    )


def linked(text, links):
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)  # the odd ones are blocks of code
    for at in range(0, len(parts), 2):
        parts[at] = NAME.sub(lambda name: f"[{name[0]}][{links[name[1]]}]" if name[1] in links else name[0], parts[at])
    return "".join(parts)
