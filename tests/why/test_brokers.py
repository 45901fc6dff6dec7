"""`why` of a cluster: several brokers, one that does not answer, a slave."""

import asyncio
from pathlib import Path

from ha.pairs import in_step, log_bytes, running_master, running_slave
from peers.in_process import Client
from sdk.two_brokers import on_both, pair
from waiting import until

from aerobee import Message, Verdict, connect
from aerobee.protocol.wire.message_facts import EXPLAIN_MESSAGE, decode
from aerobee.testing import EmbeddedBroker
from why.group_verdicts import verdict_for


async def test_the_broker_that_has_it_tells_and_one_that_is_away_makes_not_found_unknown() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        try:
            async with connect(first.url, timeout=1.0) as mq:
                await on_both(mq, "orders", queues=1)
                receipts = [await mq.send("orders", b"%d" % number) for number in range(4)]
                by_broker = {row.queue.broker_name: row for row in receipts}
                async with mq.consumer("orders", group="g") as inbox:
                    for _ in receipts:
                        async with asyncio.timeout(20):
                            await (await inbox.get()).ack()
                for broker, receipt in by_broker.items():
                    answer = await mq.why(receipt.message_id)
                    assert answer.life[0].facts["broker"] == broker
                    assert verdict_for(answer, "g").verdict == "consumed", answer.as_dict()
                await second.stop()
                answer = await mq.why(by_broker["first"].message_id)
                assert verdict_for(answer, "g").verdict == "consumed"
                answer = await mq.why(by_broker["second"].message_id)
                assert answer.groups[0].verdict in ("unknown", "not_found")
                facts = answer.groups[0].facts  # it may have unregistered by now
                assert (answer.groups[0].verdict == "unknown") == ("unreached" in facts)
        finally:
            await second.stop()


async def test_a_slave_tells_what_it_has_and_changes_nothing(tmp_path: Path) -> None:
    async def check(message: Message) -> Verdict:
        return Verdict.UNKNOWN

    async with (
        running_master(tmp_path) as master,
        running_slave(tmp_path, master) as slave,
        connect(f"mq://127.0.0.1:{master.namesrv_port}") as mq,
    ):
        await mq.admin.create_topic("orders", queues=1)
        plain = await mq.send("orders", b"1")
        async with (
            mq.transactions("orders", group="pay", check=check) as transactions,
            transactions.begin(b"2") as half,
        ):
            half.verdict = Verdict.UNKNOWN
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("orders"))
        client = await Client.connect(slave)
        for receipt in (plain, half.receipt):
            ext = {"msgId": receipt.message_id}
            facts = decode((await client.request(EXPLAIN_MESSAGE, ext)).body)
            assert len(facts.copies) == 1 and facts.topic == "orders"
        assert facts.copies[0].state is None  # only the master knows
        await client.close()
        await in_step(slave, master)
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")
