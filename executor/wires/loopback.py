"""Ranks of one machine listen on its loopback interface, which no other machine can reach, unless told otherwise."""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .job_store import has_agent_store

_NAMES = ("lo", "lo0")
_INTERFACE = "GLOO_SOCKET_IFNAME"


def listen_locally() -> None:
    """Makes gloo use the loopback interface, unless GLOO_SOCKET_IFNAME names another."""
    found = next((name for _, name in socket.if_nameindex() if name in _NAMES), None)
    if found is not None:
        os.environ.setdefault(_INTERFACE, found)


def all_here() -> bool:
    """Whether all ranks of this process's job are on this machine, by what torchrun or the user has set."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return local == world if local is not None else _meeting_place() is not None


def ranks_here() -> int:
    """How many ranks of the default process group are on this machine, by what torchrun has set; without it all."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdecimal() else dist.get_world_size()


def local_store(rank: int, world: int, limit: timedelta) -> Any:
    """The store at which ranks meet, served by rank 0 on MASTER_ADDR alone, where that is the loopback; else None.

    torch itself would listen on every interface. Also None where torchrun serves one.

    Raises OSError: the port is taken.
    """
    address = _meeting_place()
    if address is None or has_agent_store():
        return None
    port, listener = int(os.environ["MASTER_PORT"]), None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=2048).detach()
    return dist.TCPStore(  # type: ignore[attr-defined]
        address, port, world, is_master=rank == 0, timeout=limit, master_listen_fd=listener
    )


def _meeting_place() -> str | None:
    """MASTER_ADDR as a number, where that is one of the loopback interface."""
    try:
        found = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)
        address = str(min(found)[4][0])  # IPv4 before IPv6, on every rank alike
        return address if ipaddress.ip_address(address).is_loopback else None
    except (OSError, KeyError, ValueError):
        return None
