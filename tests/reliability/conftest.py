"""What tests of reliability share: leases that expire in a second."""

import pytest


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "1")
