"""The hub: Atropos' own API server, which also takes groups from records. They wait in its queue like all others.

Registration, ``/batch``, the mixing of environments and the status are unchanged for a trainer. The hub runs in the
process of the API server and hands over objects, without HTTP requests and JSON. Needs atroposlib.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

from rollway.errors import InvalidArgument
from rollway.integrations.atropos.encoding import decode_group
from rollway.integrations.atropos.group_reader import GroupReader
from rollway.records.server import RecordServer

_log = logging.getLogger(__name__)

_WHOLE_NUMBERS = ("tokens", "masks")


async def feed(server: RecordServer, reader: GroupReader | None = None) -> None:
    """Moves groups from a record server of `ATROPOS_SCHEMA` into the API server of this process, until it is closed.

    Logs and drops: records that do not come from an Atropos environment; groups that the API server refuses; groups
    with bytes, infinities or NaN, because ``/batch`` is strict JSON and one such group would spoil a trainer's batch;
    and groups that come while no trainer is registered, because they belong to a run before ``/reset_data``.
    """
    from atroposlib.api import server as api
    from pydantic import ValidationError

    reader = reader or GroupReader(server)
    while True:
        try:
            group = await reader.read_async()
        except InvalidArgument as error:
            _log.error("a record is dropped: %s", error)
            continue
        if group is None:
            return
        if not hasattr(api.app.state, "queue"):
            _log.warning("no trainer is registered: group %s is dropped", group.key)
        else:
            try:
                await api.scored_data(api.ScoredData(**_check_json(decode_group(group.records))))
            except (InvalidArgument, ValidationError) as error:
                _log.error("Atropos refuses group %s: %s", group.key, error)
        group.release()  # only now: until it is in the queue, its records count as waiting


def _check_json(group: dict[str, Any]) -> dict[str, Any]:
    """The group, if JSON can hold it. Otherwise raises."""
    for name, value in group.items():
        if name not in _WHOLE_NUMBERS and (what := _not_json(value)) is not None:
            raise InvalidArgument(f"field '{name}' holds {what}, which /batch cannot give to a trainer")
    return group


def _not_json(value: Any) -> str | None:
    """The first value that JSON cannot hold, in words; ``None`` if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return "bytes"
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((what for one in within if (what := _not_json(one)) is not None), None)


async def serve(server: RecordServer, host: str, port: int) -> int:
    """Runs the API server and feeds it, until SIGINT or SIGTERM, or until one of the two fails.

    Returns the exit code: 0, or the code of a `SystemExit` from a handler of SIGTERM or from the API server's start.
    """
    import uvicorn
    from atroposlib.api.server import app

    web = uvicorn.Server(uvicorn.Config(app, host=host, port=port))
    serving, feeding = asyncio.create_task(_exit_code(web)), asyncio.create_task(feed(server))
    await asyncio.wait({serving, feeding}, return_when=asyncio.FIRST_COMPLETED)
    web.should_exit = True  # after the end of the feed, the server ends with its current requests
    code = await serving
    if feeding.done():
        feeding.result()
    feeding.cancel()
    return code


async def _exit_code(web: Any) -> int:
    """Serves. Turns `SystemExit` into a result, because in a task it would end the event loop."""
    try:
        await web.serve()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0
