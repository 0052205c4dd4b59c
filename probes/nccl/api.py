"""NCCL as the lanes call it, and nccl4py behind it.

The public objects of nccl4py resolve every buffer on every call, which imports torch where torch is and costs more than a small
collective takes. So the communicator is made by `nccl.core`, and operations are launched through `nccl.bindings`, which takes plain
addresses and costs half a microsecond (measured on a CPU, 0.6.0).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from probes.nccl.params import Dtype
from probes.reasons import Reason

_SUM = 0
DTYPES: dict[str, int] = {"float": 7, "bf16": 9}
ALLTOALL_SINCE = 22800


class NcclError(Exception):
    """NCCL reported an error. `reason` is what it means for a run; `remote` says that a peer or the network is to blame."""

    def __init__(self, reason: Reason, message: str, remote: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.remote = remote


class Nccl(Protocol):
    """What a lane needs of NCCL. Addresses are device memory, counts are elements. Every method may raise NcclError."""

    def versions(self) -> dict[str, str]:
        """Versions for the result."""
        ...

    def unique_id(self) -> str:
        """A new unique id, in hexadecimal."""
        ...

    def join(self, ranks: int, rank: int, unique_id: str) -> None:
        """Enter the communicator. Blocks until all ranks have."""
        ...

    def all_reduce(self, send: int, receive: int, count: int) -> None:
        """Put an all-reduce on the stream."""
        ...

    def all_gather(self, send: int, receive: int, count: int) -> None:
        """Put an all-gather on the stream; `count` is what each rank gives."""
        ...

    def reduce_scatter(self, send: int, receive: int, count: int) -> None:
        """Put a reduce-scatter on the stream; `count` is what each rank gets."""
        ...

    def alltoall(self, send: int, receive: int, count: int) -> None:
        """Put an all-to-all on the stream; `count` is what each rank gives each other."""
        ...

    def exchange(self, send: int, receive: int, count: int, to: int, source: int) -> None:
        """Put a send to one rank and a receive from another on the stream, as one group."""
        ...

    def trouble(self) -> str | None:
        """What NCCL noticed since the last call while work was under way. None: nothing."""
        ...

    def leave(self) -> None:
        """Destroy the communicator. All ranks must call it."""
        ...

    def abort(self) -> None:
        """End whatever is under way and free the communicator."""
        ...


class Nccl4py:
    """NCCL through nccl4py. Raises NcclError: `engine_missing` without nccl4py or libnccl, `engine_incompatible` when they do not fit."""

    def __init__(self, stream: int, dtype: Dtype) -> None:
        self._stream = stream
        self._dtype = DTYPES[dtype]
        self._core, self._bindings = _load()
        self._communicator: Any = None
        self._handle: Any = None
        self._ranks = 0
        try:
            self._version = int(self._bindings.get_version())
        except Exception as error:  # noqa: BLE001 - nccl4py loads libnccl here and raises whatever its loader does
            raise NcclError(Reason.ENGINE_MISSING, f"libnccl cannot be loaded: {error}") from None

    def versions(self) -> dict[str, str]:
        """Versions of NCCL and nccl4py."""
        code = self._version
        return {"nccl": f"{code // 10000}.{code % 10000 // 100}.{code % 100}", "nccl4py": str(self._core.__version__)}

    def unique_id(self) -> str:
        """A new unique id, in hexadecimal."""
        with _errors(self):
            return bytes(self._core.get_unique_id()).hex()

    def join(self, ranks: int, rank: int, unique_id: str) -> None:
        """Enter the communicator. Blocks until all ranks have."""
        with _errors(self):
            identity = self._core.UniqueId.from_bytes(bytes.fromhex(unique_id))
            self._communicator = self._core.Communicator.init(ranks, rank, identity)
            self._handle = self._bindings.Comm(self._communicator.ptr)
            self._ranks = ranks

    def all_reduce(self, send: int, receive: int, count: int) -> None:
        """Put an all-reduce on the stream."""
        try:
            self._bindings.all_reduce(send, receive, count, self._dtype, _SUM, self._handle, self._stream)
        except Exception as error:  # noqa: BLE001 - see _errors; a context manager here would cost more than the call
            raise self._failure(error) from None

    def all_gather(self, send: int, receive: int, count: int) -> None:
        """Put an all-gather on the stream."""
        try:
            self._bindings.all_gather(send, receive, count, self._dtype, self._handle, self._stream)
        except Exception as error:  # noqa: BLE001
            raise self._failure(error) from None

    def reduce_scatter(self, send: int, receive: int, count: int) -> None:
        """Put a reduce-scatter on the stream."""
        try:
            self._bindings.reduce_scatter(send, receive, count, self._dtype, _SUM, self._handle, self._stream)
        except Exception as error:  # noqa: BLE001
            raise self._failure(error) from None

    def alltoall(self, send: int, receive: int, count: int) -> None:
        """Put an all-to-all on the stream: one call from NCCL 2.28 on, a group of sends and receives before."""
        try:
            if self._version >= ALLTOALL_SINCE:
                self._bindings.allto_all(send, receive, count, self._dtype, self._handle, self._stream)
                return
            step = count * (4 if self._dtype == DTYPES["float"] else 2)
            self._bindings.group_start()
            for peer in range(self._ranks):
                self._bindings.send(send + peer * step, count, self._dtype, peer, self._handle, self._stream)
                self._bindings.recv(receive + peer * step, count, self._dtype, peer, self._handle, self._stream)
            self._bindings.group_end()
        except Exception as error:  # noqa: BLE001
            raise self._failure(error) from None

    def exchange(self, send: int, receive: int, count: int, to: int, source: int) -> None:
        """Put a send and a receive on the stream, as one group."""
        try:
            self._bindings.group_start()
            self._bindings.send(send, count, self._dtype, to, self._handle, self._stream)
            self._bindings.recv(receive, count, self._dtype, source, self._handle, self._stream)
            self._bindings.group_end()
        except Exception as error:  # noqa: BLE001
            raise self._failure(error) from None

    def trouble(self) -> str | None:
        """What NCCL noticed while work was under way."""
        if self._handle is None:
            return None
        result = int(self._bindings.comm_get_async_error(self._handle))
        if result in {int(self._bindings.Result.Success), int(self._bindings.Result.InProgress)}:
            return None
        return f"{self._bindings.Result(result).name}: {self._last_error()}"

    def leave(self) -> None:
        """Destroy the communicator."""
        if self._communicator is not None:
            with _errors(self):
                self._communicator.destroy()
            self._communicator = self._handle = None

    def abort(self) -> None:
        """Abort the communicator."""
        if self._communicator is not None:
            with _errors(self):
                self._communicator.abort()
            self._communicator = self._handle = None

    def _last_error(self) -> str:
        try:
            return str(self._bindings.get_last_error(self._handle if self._handle is not None else self._bindings.Comm(0))).strip()[:300]
        except Exception:  # noqa: BLE001 - only words for a message
            return ""

    def _failure(self, error: Exception) -> NcclError:
        if isinstance(error, NcclError):
            return error
        text = str(error).replace(" (run with NCCL_DEBUG=WARN for details)", "")
        last = self._last_error()
        missing = "not found" in text.lower() and "symbol" in text.lower()
        reason = Reason.ENGINE_INCOMPATIBLE if missing else Reason.ENGINE_ERROR
        return NcclError(reason, f"NCCL: {text}" + (f": {last}" if last and last not in text else ""), remote="RemoteError" in text)


class _errors:  # noqa: N801 - used as a statement
    """Turns whatever nccl4py raises into NcclError."""

    def __init__(self, nccl: Nccl4py) -> None:
        self._nccl = nccl

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise self._nccl._failure(error) from None  # noqa: SLF001 - one class in two parts


def _load() -> tuple[ModuleType, ModuleType]:
    try:
        import nccl.core as core
        from nccl.bindings import nccl as bindings
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "nccl":
            raise NcclError(Reason.ENGINE_MISSING, f"nccl4py is not installed here ({error}): pip install 'nccl4py[cu13]'") from None
        raise NcclError(Reason.ENGINE_INCOMPATIBLE, f"nccl4py does not import here: {error}") from None
    return core, bindings
