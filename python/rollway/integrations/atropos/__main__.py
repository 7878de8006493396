"""``python -m rollway.integrations.atropos``: runs the file of an Atropos environment with Rollway's transport.

```text
python -m rollway.integrations.atropos path/to/env.py:MyEnv serve --env.transport shm --env.shm_name run1 …
python -m rollway.integrations.atropos package.module:MyEnv serve …
python -m rollway.integrations.atropos api --shm-name run1 --port 8000
```

The first two are the environment's own command line (``serve``, ``process``, ``evaluate``), with more flags. The class
may be left out if the file has one environment. ``api`` is Atropos' ``run-api`` for environments with
``--env.delivery hub``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import inspect
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rollway.integrations.atropos.encoding import ATROPOS_SCHEMA
from rollway.integrations.atropos.transport import with_transport
from rollway.integrations.token_file import read_token


def main(arguments: list[str]) -> None:
    """Runs what the arguments name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    if arguments[0] == "api":
        serve_api(arguments[1:])
    else:
        environment = load(arguments[0])
        sys.argv[:] = arguments  # Atropos reads its flags there
        with_transport(environment).cli()


def load(target: str) -> type[Any]:
    """The environment class that ``file.py:Class`` or ``module:Class`` names."""
    place, _, name = target.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    if name:
        found = getattr(module, name, None)
        if not inspect.isclass(found):
            sys.exit(f"{place} has no class {name}; its environments: {', '.join(_environments(module)) or 'none'}")
        return found
    there = _environments(module)
    if len(there) != 1:
        sys.exit(f"{place} has {len(there)} environments ({', '.join(there)}): say which, as {place}:Class")
    return there.popitem()[1]


def serve_api(arguments: list[str]) -> None:
    """Atropos' API server, fed by records."""
    import rollway
    from rollway.integrations.atropos import hub

    parser = argparse.ArgumentParser("python -m rollway.integrations.atropos api", description=hub.__doc__)
    parser.add_argument("--host", default="0.0.0.0", help="of the API server")
    parser.add_argument("--port", type=int, default=8000, help="of the API server")
    parser.add_argument("--shm-name", help="segment for environments on this machine")
    parser.add_argument("--tcp-port", type=int, help="port for environments on other machines")
    parser.add_argument("--tcp-host", default="127.0.0.1", help="address of that port")
    parser.add_argument("--token-file", type=Path, help="file with the token that they need")
    parser.add_argument("--tls-cert", type=Path, help="certificate for that port (PEM); turns TLS on")
    parser.add_argument("--tls-key", type=Path, help="its private key (PEM)")
    parser.add_argument(
        "--lane-bytes", type=int, default=64 << 20, help="room for the groups of each environment; one has to fit"
    )
    chosen = parser.parse_args(arguments)
    transports: list[rollway.ShmTransport | rollway.TcpTransport] = []
    if chosen.shm_name is not None:
        transports.append(rollway.ShmTransport(chosen.shm_name, keep="never"))
    if (chosen.tls_cert is None) != (chosen.tls_key is None):
        parser.error("TLS needs --tls-cert and --tls-key, both")
    if chosen.tcp_port is not None:
        tls = None if chosen.tls_cert is None else rollway.Tls(chosen.tls_cert, chosen.tls_key)
        try:
            token = read_token(chosen.token_file, "--token-file")
        except rollway.InvalidArgument as error:
            parser.error(str(error))
        transports.append(rollway.TcpTransport(chosen.tcp_port, chosen.tcp_host, token=token, tls=tls))
    if not transports:
        parser.error("environments need a way in: give --shm-name, --tcp-port, or both")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the records are closed
    with rollway.RecordServer(ATROPOS_SCHEMA, transports, lane_bytes=chosen.lane_bytes) as server:
        try:
            sys.exit(asyncio.run(hub.serve(server, chosen.host, chosen.port)))
        except KeyboardInterrupt:
            sys.exit(130)


def _from_file(path: Path) -> ModuleType:
    """Imports a file as Python runs a script: its directory is first on the path. Its name is not ``__main__``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        sys.exit(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name.partition(".")[0] and missing.name != name:
            raise
        sys.exit(f"there is no module {name}. The name of a file ends in .py")


def _environments(module: ModuleType) -> dict[str, type[Any]]:
    from atroposlib.envs.base import BaseEnv

    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    own = {name: value for name, value in classes.items() if value.__module__ == module.__name__}
    return {name: value for name, value in own.items() if issubclass(value, BaseEnv)}


if __name__ == "__main__":
    main(sys.argv[1:])
