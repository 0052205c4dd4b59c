"""Carries TCP connections from a listening socket of outside to an address inside the cell. SIGUSR1 resets all connections.

usage: cell_door.py LISTENER_FD ADDRESS PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import sys

PIECE = 1 << 18


class Door:
    def __init__(self, address: str, port: int) -> None:
        self._address, self._port = address, port
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in self._open:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(self._address, self._port, limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, inner_writer}
        try:
            await asyncio.gather(self._pump(reader, inner_writer), self._pump(inner_reader, writer))
        finally:
            for one in (writer, inner_writer):
                self._open.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()


async def main() -> None:
    door = Door(sys.argv[2], int(sys.argv[3]))
    listener = socket.socket(fileno=int(sys.argv[1]))
    server = await asyncio.start_server(door.serve, sock=listener, limit=PIECE)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, door.cut)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
