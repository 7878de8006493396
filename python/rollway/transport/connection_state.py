"""ConnectionState: where a connection to a learner stands. The forwarders and `TcpWeights` inherit it."""

from __future__ import annotations

from rollway import _core as native


class ConnectionState:
    """What the native connection says of itself."""

    _core: native.Forwarder | native.WeightMirror

    @property
    def address(self) -> str:
        """``host:port`` of the learner, or of the copy of its weights that this one fetches from."""
        return self._core.address

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._core.connected

    @property
    def last_error(self) -> str | None:
        """Why there is no connection; ``None`` while there is one."""
        return self._core.last_error

    @property
    def over(self) -> bool:
        """Whether it has ended: it was closed, or the connection was given up."""
        return self._core.over
