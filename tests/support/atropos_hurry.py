"""Atropos' loop without its pauses: it waits five seconds before it begins, and a tenth between two looks around."""

import asyncio

from atroposlib.envs import base

from rollway.integrations.atropos import __main__


class Hurried:
    """The asyncio module, in which nobody sleeps for long."""

    def __getattr__(self, name):
        return getattr(asyncio, name)

    async def sleep(self, seconds):
        await asyncio.sleep(min(seconds, 0.005))


def main(arguments):
    """The launcher, in a process of its own."""
    base.asyncio = Hurried()
    __main__.main([*arguments])
