"""What administrators ask of a name server: lists, key-value table, permissions, its settings."""

from collections.abc import Callable

import structlog

from aerobee.broker.handlers.common import answer_when_saved
from aerobee.broker.net.requests import Request
from aerobee.broker.services.name_service.registration_body import topic_queues_from_route
from aerobee.broker.services.name_service.route_data import MASTER_ID, QueueData
from aerobee.broker.services.name_service.service import NameService
from aerobee.broker.services.topics.config import UNIT_FLAG, UNIT_SUB_FLAG
from aerobee.broker.settings import SettingsError, render_settings
from aerobee.broker.settings.properties_file import parse_properties
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, decode_ext

log = structlog.get_logger("aerobee.names")

_FIXED_KEYS = {"configBlackList", "configStorePath", "kvConfigPath"}
# All that RocketMQ's name servers (4.9.7, 5.5.0) print, by their names.
NAME_SERVICE_KEYS = {
    *_FIXED_KEYS,
    *("bindAddress", "clientRequestThreadPoolNums", "clientRequestThreadPoolQueueCapacity"),
    *("clusterTest", "defaultThreadPoolNums", "defaultThreadPoolQueueCapacity"),
    *("deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableControllerInNamesrv"),
    *("enableShutdownGracefully", "enableTopicList", "listenPort", "needWaitForService"),
    *("notifyMinBrokerIdChanged", "orderMessageEnable", "productEnvName"),
    *("returnOrderTopicConfigToBroker", "rocketmqHome", "scanNotActiveBrokerInterval"),
    *("serverAsyncSemaphoreValue", "serverCallbackExecutorThreads"),
    *("serverChannelMaxIdleTimeSeconds", "serverNettyWorkerGroupEnable"),
    *("serverOnewaySemaphoreValue", "serverPooledByteBufAllocatorEnable"),
    *("serverSelectorThreads", "serverSocketBacklog", "serverSocketRcvBufSize"),
    *("serverSocketSndBufSize", "serverWorkerThreads", "shutdownWaitTimeSeconds"),
    *("supportActingMaster", "unRegisterBrokerQueueCapacity", "useEpollNativeSelector"),
    *("waitSecondsForService", "writeBufferHighWaterMark", "writeBufferLowWaterMark"),
}


class _KvRequest(Header):
    namespace: str = ""
    key: str = ""


class _PutKvRequest(Header):
    namespace: str
    key: str
    value: str | None = None


def put_kv(service: NameService, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _PutKvRequest)
    if header.value is None:  # afterwards nothing is found there, as in RocketMQ
        service.kv.delete(header.namespace, header.key)
    else:
        service.kv.put(header.namespace, header.key, header.value)
    answer = request.command.answer(ResponseCode.SUCCESS)
    return answer_when_saved(request, answer, service.kv.file)


def get_kv(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _KvRequest)
    value = service.kv.get(header.namespace, header.key)
    if value is None:
        return request.command.answer(
            ResponseCode.QUERY_NOT_FOUND,
            remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return request.command.answer(ResponseCode.SUCCESS, {"value": value})


def delete_kv(service: NameService, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _KvRequest)
    service.kv.delete(header.namespace, header.key)
    answer = request.command.answer(ResponseCode.SUCCESS)
    return answer_when_saved(request, answer, service.kv.file)


class _NamespaceRequest(Header):
    namespace: str = ""


def list_kv(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _NamespaceRequest)
    table = service.kv.namespace(header.namespace)
    if not table:
        return request.command.answer(
            ResponseCode.QUERY_NOT_FOUND,
            remark=f"No config item, Namespace: {header.namespace}",
        )
    return request.command.answer(ResponseCode.SUCCESS, body=fastjson.dumps({"table": table}))


def cluster_info(service: NameService, request: Request) -> Command:
    brokers = list(service.routes.brokers(service.address_for(request.connection)))
    clusters: dict[str, list[str]] = {}
    for broker in brokers:
        clusters.setdefault(broker.cluster, []).append(broker.name)
    body = {
        "brokerAddrTable": {broker.name: broker.to_json() for broker in brokers},
        "clusterAddrTable": clusters,
    }
    return request.command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(body))


class _BrokerNameRequest(Header):
    broker_name: str = ""


def wipe_write_permission(service: NameService, request: Request) -> Command:
    name = decode_ext(request.command.ext, _BrokerNameRequest).broker_name
    count = service.routes.set_write_permission(name, False)
    return request.command.answer(ResponseCode.SUCCESS, {"wipeTopicCount": str(count)})


def add_write_permission(service: NameService, request: Request) -> Command:
    name = decode_ext(request.command.ext, _BrokerNameRequest).broker_name
    count = service.routes.set_write_permission(name, True)
    return request.command.answer(ResponseCode.SUCCESS, {"addTopicCount": str(count)})


def all_topics(service: NameService, request: Request) -> Command:
    if not service.settings.enable_all_topic_list:
        return _disabled(request, "enableAllTopicList")
    return _topic_list(request, service.routes.topics())


class _ClusterRequest(Header):
    cluster: str = ""


def topics_of_cluster(service: NameService, request: Request) -> Command:
    if not service.settings.enable_topic_list:
        return _disabled(request, "enableTopicList")
    wanted = decode_ext(request.command.ext, _ClusterRequest).cluster
    address = service.address_for(request.connection)
    names = {broker.name for broker in service.routes.brokers(address) if broker.cluster == wanted}
    return _topic_list(request, service.routes.topics(lambda data: data.broker_name in names))


def system_topics(service: NameService, request: Request) -> Command:
    """The names of clusters and brokers, which are topics too; and a master to ask for the rest."""
    brokers = list(service.routes.brokers(service.address_for(request.connection)))
    names = [broker.cluster for broker in brokers] + [broker.name for broker in brokers]
    masters = [b.addresses[MASTER_ID] for b in brokers if MASTER_ID in b.addresses]
    return _topic_list(request, list(dict.fromkeys(names)), masters[0] if masters else None)


def _unit_topics(matches: Callable[[QueueData], bool]) -> Callable[[NameService, Request], Command]:
    def answer(service: NameService, request: Request) -> Command:
        if not service.settings.enable_topic_list:
            return _disabled(request, "enableTopicList")
        return _topic_list(request, service.routes.topics(matches))

    return answer


def _topic_list(request: Request, topics: list[str], address: str | None = None) -> Command:
    body = fastjson.dumps({"brokerAddr": address, "topicList": topics})
    return request.command.answer(ResponseCode.SUCCESS, body=body)


def _disabled(request: Request, key: str) -> Command:
    return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=f"disable: {key}=false")


class _TopicRequest(Header):
    topic: str = ""
    cluster_name: str | None = None


def delete_topic(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _TopicRequest)
    service.routes.delete_topic(header.topic, header.cluster_name or None)
    return request.command.answer(ResponseCode.SUCCESS)


def register_topic(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _TopicRequest)
    try:
        queues = topic_queues_from_route(request.command.body)
    except fastjson.JsonError as error:
        return request.command.answer(ResponseCode.INVALID_PARAMETER, remark=str(error))
    if header.topic:
        service.routes.put_queues(header.topic, queues)
    return request.command.answer(ResponseCode.SUCCESS)


class _MemberGroupRequest(Header):
    cluster_name: str = ""
    broker_name: str = ""


def broker_member_group(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _MemberGroupRequest)
    broker = service.routes.broker(header.broker_name, service.address_for(request.connection))
    found = broker is not None and broker.cluster == header.cluster_name
    group = {
        "brokerAddrs": dict(broker.addresses) if broker is not None and found else {},
        "brokerName": header.broker_name,
        "cluster": header.cluster_name,
    }
    body = fastjson.dumps({"brokerMemberGroup": group})
    return request.command.answer(ResponseCode.SUCCESS, body=body)


def get_settings(service: NameService, request: Request) -> Command:
    """Those of the settings that concern a name server, under RocketMQ's names for them."""
    settings = service.settings
    lines = (line.partition("=") for line in render_settings(settings).splitlines())
    shown = {key: value for key, _, value in lines if key in NAME_SERVICE_KEYS}
    port = settings.namesrv_listen_port
    shown["listenPort"] = str(port if port >= 0 else settings.listen_port)
    shown["configBlackList"] = ";".join(sorted(_FIXED_KEYS))
    shown["kvConfigPath"] = str(service.kv.file.path)
    text = "".join(f"{key}={shown[key]}\n" for key in sorted(shown))
    return request.command.answer(ResponseCode.SUCCESS, body=text.encode())


def update_settings(service: NameService, request: Request) -> Command:
    command = request.command
    try:
        text = str(command.body, "utf-8")
    except UnicodeDecodeError:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8")
    values = {key: value for _, key, value in parse_properties(text)}
    fixed = sorted(_FIXED_KEYS & set(values))
    if fixed:
        return command.answer(
            ResponseCode.NO_PERMISSION, remark=f"Can not update config in black list: {fixed[0]}"
        )
    try:
        changed = service.settings.change(values)
    except SettingsError as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    log.info("settings changed", settings=sorted(changed), peer=request.connection.name)
    return command.answer(ResponseCode.SUCCESS)


TABLE: dict[int, Callable[[NameService, Request], Command | None]] = {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: list_kv,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: _unit_topics(
        lambda data: bool(data.topic_sys_flag & UNIT_FLAG)
    ),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _unit_topics(
        lambda data: bool(data.topic_sys_flag & UNIT_SUB_FLAG)
    ),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _unit_topics(
        lambda data: data.topic_sys_flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_BROKER_MEMBER_GROUP: broker_member_group,
    RequestCode.GET_NAMESRV_CONFIG: get_settings,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_settings,
}
