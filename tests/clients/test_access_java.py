"""Apache's mqadmin of both versions with credentials, plain and over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from access.guarded import write_users
from peers.aerobee_broker import AerobeeBroker
from peers.apache import VERSIONS
from peers.java_client import JavaClient
from tls.certificates import Authority

pytestmark = pytest.mark.apache

CLUSTER = "DefaultCluster"


@dataclass
class Admin:
    """mqadmin that signs as one user at a time."""

    java: JavaClient
    folder: Path
    namesrv: str
    broker: str

    def run(self, user: str, command: str, *args: str) -> str:
        tools = self.folder / "conf" / "tools.yml"
        tools.parent.mkdir(exist_ok=True)
        tools.write_text(f"accessKey: {user}\nsecretKey: a-secret-of-{user}\n")
        return self.java.admin(command, "-n", self.namesrv, *args)


@pytest.fixture(params=[(version, tls) for version in VERSIONS for tls in (False, True)], ids=str)
def admin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Admin]:
    version, tls = request.param
    authority = Authority(tmp_path / "certificates")
    pair = authority.sign("server")
    settings = {
        "aclEnable": "true",
        "aclFile": str(write_users(tmp_path)),
        "tls.server.certPath": pair.certificate,
        "tls.server.keyPath": pair.key,
    }
    properties = {
        "tls__enable": "true",
        "tls__test__mode__enable": "false",
        "tls__client__authServer": "true",
        "tls__client__trustCertPath": authority.pair.certificate,
    }
    folder = tmp_path / "java"
    folder.mkdir()
    with (
        AerobeeBroker(tmp_path / "broker", **settings) as broker,
        JavaClient(version, folder, **(properties if tls else {})) as java,
    ):
        yield Admin(java, folder, broker.namesrv, broker.broker)
        broker.stop()


def test_mqadmin_signs_and_changes_users(admin: Admin) -> None:
    made = admin.run("root", "updateTopic", "-b", admin.broker, "-t", "t", "-r", "1", "-w", "1")
    assert "success" in made
    refused = admin.run("nothing", "updateTopic", "-b", admin.broker, "-t", "u")
    assert "User:nothing has no permission to Create Topic:u" in refused
    if admin.java.version.startswith("4"):
        fields: tuple[str, ...] = ("-a", "newcomer", "-s", "a-secret-of-newcomer", "-t", "t=PUB")
        done = admin.run("root", "updateAclConfig", "-b", admin.broker, *fields)
        assert "success" in done
        assert admin.broker in admin.run("root", "clusterAclConfigVersion", "-b", admin.broker)
    else:
        fields = ("-u", "newcomer", "-p", "a-secret-of-newcomer")
        assert "success" in admin.run("root", "createUser", "-b", admin.broker, *fields)
        rights = ("-s", "User:newcomer", "-r", "Topic:t", "-a", "Pub", "-d", "Allow")
        assert "success" in admin.run("root", "createAcl", "-b", admin.broker, *rights)
        assert "newcomer" in admin.run("root", "listUser", "-b", admin.broker)
        assert "Topic:t" in admin.run("root", "listAcl", "-b", admin.broker)
    sent = admin.run("newcomer", "sendMessage", "-t", "t", "-p", "hello")
    assert "SEND_OK" in sent
    denied = admin.run("nothing", "topicStatus", "-t", "t")
    assert "User:nothing has no permission to Get Topic:t" in denied
