"""Pinning: registers memory with CUDA, so that a batch goes from the ring to the GPU by one asynchronous copy.

It calls the CUDA driver, without torch, and the registration holds for every library in the process. `Server` calls it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_DRIVER = "libcuda.so.1"
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of the process


def pin(address: int, nbytes: int) -> Callable[[], None]:
    """Page-locks memory for the GPU, and returns a function that undoes it. RuntimeError when it cannot be done."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise RuntimeError(f"pin_host_memory needs the NVIDIA driver, and there is none here: {error}") from None
    _check(driver, driver.cuInit(0), "starting CUDA")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), 0), "finding a GPU")
    # The primary context is the one that torch, JAX and the CUDA runtime use as well.
    _check(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "opening the GPU")
    _check(driver, driver.cuCtxPushCurrent_v2(context), "entering the GPU's context")
    try:
        register = driver.cuMemHostRegister_v2
        code = register(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE))
        _check(driver, code, f"page-locking {nbytes:,} bytes (ulimit -l, or too little memory?)")
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def unpin() -> None:
        driver.cuCtxPushCurrent_v2(context)
        driver.cuMemHostUnregister(ctypes.c_void_p(address))
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        driver.cuDevicePrimaryCtxRelease_v2(device)

    return unpin


def _check(driver: ctypes.CDLL, code: int, what: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    reason = text.value.decode() if text.value else f"error {code}"
    raise RuntimeError(f"pin_host_memory failed at {what}: {reason}")
