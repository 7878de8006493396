"""Sub-interpreters: an import is refused with words, where it would hang in a native module."""

import subprocess
import sys

import pytest

CODE = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
IMPORT = '''
try:
    import rollway.errors
except ImportError as error:
    print(error, flush=True)
'''
if sys.argv[1] == "after":
    import rollway
one = interpreters.create()
failed = (getattr(interpreters, "exec", None) or interpreters.run_string)(one, IMPORT)
assert failed is None, failed
import rollway
print(rollway.Server.__name__)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_import_in_a_sub_interpreter_is_refused_and_the_main_one_goes_on(when):
    """Before and after the main interpreter has imported it."""
    result = subprocess.run([sys.executable, "-c", CODE, when], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    refusal, name = result.stdout.strip().splitlines()
    assert "rollway cannot be imported in a sub-interpreter" in refusal and "a process of its own" in refusal
    assert name == "Server"
