"""The code of documents, for tests that run it."""

import re


def blocks(document):
    """The Python blocks of a page, in their order."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
