"""Ranks of one machine meet and listen where no other machine can reach them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
from faulty import listening

from contraflow.executor.wires.loopback import all_here, listen_locally, local_store

LIMIT = timedelta(seconds=60)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(autouse=True)
def joined_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of ranks that a shell has started."""
    for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)


def test_the_meeting_place_of_one_machine_is_on_its_loopback() -> None:
    """torch alone would listen on every interface."""
    before = listening([os.getpid()])
    store = local_store(0, 1, LIMIT)
    store.set("key", "value")
    assert store.get("key") == b"value"
    new = listening([os.getpid()])
    for address in before:
        new.remove(address)
    assert new == ["0100007F"]
    assert all_here()


def test_a_port_that_is_taken_is_an_error_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody trains with whoever has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            local_store(0, 1, LIMIT)


def test_several_machines_meet_where_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their network is, torchrun and the user know."""
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    assert local_store(0, 2, LIMIT) is None
    assert not all_here()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not all_here()


def test_what_the_user_says_about_interfaces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback is only the default."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    listen_locally()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    listen_locally()
    assert os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
