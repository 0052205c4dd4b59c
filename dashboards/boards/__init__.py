"""The boards, one module each."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.boards import canary, fabric, kv, monitor, neighbours, node, overview

BOARDS: tuple[Board, ...] = (overview.BOARD, fabric.BOARD, kv.BOARD, canary.BOARD, node.BOARD, neighbours.BOARD,
                             monitor.BOARD)
"""All of them, in the order in which a person goes through them."""
