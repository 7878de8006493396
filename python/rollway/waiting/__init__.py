"""Waiting in asyncio: how a coroutine waits for a native handle, and how it notices that its peers are gone.

```text
notifier.py     wakes coroutines when a native handle has something for them
room.py         what the asyncio sends of a client share
peer_watch.py   checks periodically, while a coroutine waits, whether its peers are dead
```

Nothing here is public. The clients and servers of `ring` and `records` use it. Blocking calls wait natively, with the
GIL released.
"""
