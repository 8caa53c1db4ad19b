"""One service for all tests."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from service import Service, token_of

from toolgate import Client


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    service.start()
    yield service
    service.kill()


@pytest.fixture
def caller(service: Service) -> Iterator[Client]:
    with Client(service.url, token_of("caller")) as client:
        yield client


@pytest.fixture
def approver(service: Service) -> Iterator[Client]:
    with Client(service.url, token_of("approver")) as client:
        yield client


@pytest.fixture
def session() -> str:
    return f"ses_{uuid4().hex}"
