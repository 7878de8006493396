"""Transports: how data from workers reaches a learner, and how weights reach workers.

```text
base.py           what a transport is: `Transport`, `Endpoint`, and what a server hands to it
shm.py            `ShmTransport`: shared memory under a name, for workers on this machine
tcp.py            `TcpTransport`: a port, for workers on other machines
forwarder.py      `Forwarder`: one connection for all workers of a node, through a ring of the node
record_forwarder.py  `RecordForwarder`: the same for records, through lanes of the node
forwarder_base.py what these two have in common
connection_state.py  whether there is a connection to a learner, and why not
policies.py       `OnFull`, `IfExists`, `Keep`, `OnRestart`: the choices that users make
earlier_run.py    the warning of a learner that finds the data of an earlier run
learner_end.py    how a learner lets go of its segment: closed, or left to the next learner
server_base.py    what `Server` and `RecordServer` have in common: transports, life cycle, numbers
shm_lifetime.py   how a client in shared memory is closed
tcp_lifetime.py   how a client over TCP waits and is closed
tcp_options.py    the settings that clients over TCP share, as one value
```
"""

from rollway.transport.base import Endpoint, Intake, RecordIntake, RecordTransport, Transport, WeightOutlet
from rollway.transport.forwarder import Forwarder
from rollway.transport.record_forwarder import RecordForwarder
from rollway.transport.shm import ShmTransport
from rollway.transport.tcp import TcpEndpoint, TcpTransport, Tls

__all__ = [
    "Endpoint",
    "Forwarder",
    "Intake",
    "RecordForwarder",
    "RecordIntake",
    "RecordTransport",
    "ShmTransport",
    "TcpEndpoint",
    "TcpTransport",
    "Tls",
    "Transport",
    "WeightOutlet",
]
