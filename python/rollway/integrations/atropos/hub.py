"""The hub: Atropos' own API server, with a second door. Groups come in as records and wait in its queue as any others.

Registration, ``/batch``, the mixing of environments, status: all as it was; a trainer notices nothing. The hub lives in
the process of the API server and hands over objects, so a group costs no request and no JSON. Needs atroposlib.
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

    What could not come over HTTP, or would be refused there, is refused here: logged, and gone. So are bytes,
    infinities and NaN: ``/batch`` is strict JSON, and one such group would cost a trainer its batch. So is a record
    that no Atropos environment sends, and what comes while no trainer is registered, after ``/reset_data``: it belongs
    to the run that was reset.
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
        group.release()  # only now: until it is in the queue, it counts as waiting


def _check_json(group: dict[str, Any]) -> dict[str, Any]:
    """The group, if JSON can say it."""
    for name, value in group.items():
        if name not in _WHOLE_NUMBERS and (what := _not_json(value)) is not None:
            raise InvalidArgument(f"field '{name}' holds {what}, which /batch cannot give to a trainer")
    return group


def _not_json(value: Any) -> str | None:
    """What JSON has no word for, the first that is found."""
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return "bytes"
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((what for one in within if (what := _not_json(one)) is not None), None)


async def serve(server: RecordServer, host: str, port: int) -> int:
    """Runs the API server and feeds it, until SIGINT or SIGTERM, or until one of the two fails.

    Gives the exit code: 0, or what a handler of SIGTERM, or the API server when it cannot begin, gave to ``sys.exit``.
    """
    import uvicorn
    from atroposlib.api.server import app

    web = uvicorn.Server(uvicorn.Config(app, host=host, port=port))
    serving, feeding = asyncio.create_task(_exit_code(web)), asyncio.create_task(feed(server))
    await asyncio.wait({serving, feeding}, return_when=asyncio.FIRST_COMPLETED)
    web.should_exit = True  # the feed has ended: so does the server, after the requests that it is at
    code = await serving
    if feeding.done():
        feeding.result()
    feeding.cancel()
    return code


async def _exit_code(web: Any) -> int:
    """Serves. A task that `SystemExit` ends takes the loop with it, and asyncio reports it as if it were a mistake."""
    try:
        await web.serve()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0
