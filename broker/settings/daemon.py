"""Settings of the process: addresses, cluster, name service, connections, logs, metrics."""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from aerobee.broker.settings.fields import setting

PORT_BOUNDS = {"low": 0, "high": 65535}


_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


def _is_host(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def check_host_port(value: str) -> str | None:
    host, _, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        is_host = ":" in host and _is_host(host[1:-1])
    else:
        is_host = ":" not in host and _is_host(host)
    if not value or (is_host and port.isdigit() and 0 < int(port) < 65536):
        return None
    return "write it as HOST:PORT, for example mq.example.org:20911 or [2001:db8::1]:20911"


def check_host(value: str) -> str | None:
    if not value or _is_host(value):
        return None
    return "write an address or a host name, without a port"


def _check_bound(value: str) -> str | None:
    return None if value else "name an address of this machine; 0.0.0.0 is all of them"


def _check_name_servers(value: str) -> str | None:
    for part in filter(None, (text.strip() for text in value.split(";"))):
        if check_host_port(part):
            return f"write {part} as HOST:PORT; several are separated by ;"
    return None


def _check_networks(value: str) -> str | None:
    for text in filter(None, value.replace(";", ",").split(",")):
        try:
            ip_network(text.strip(), strict=False)
        except ValueError:
            return f"{text.strip()} is not a network; write them as 10.0.0.0/8,192.168.0.0/16"
    return None


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class DaemonSettings:
    """Identity, addresses and registration."""

    # --- identity
    broker_name: str = setting("", "Name of this broker; empty: the machine's host name.")
    broker_cluster_name: str = setting("DefaultCluster", "Name of the cluster.")
    broker_id: int = setting(
        0, "0 is the master; each of its slaves (brokerRole=SLAVE) has another number.", low=-1
    )
    region_id: str = setting("DefaultRegion", "Put on every stored message as MSG_REGION.")
    broker_permission: int = setting(
        6, "4 read + 2 write for the whole broker; 4 drains it.", low=0, high=15, runtime=True
    )

    # --- addresses
    listen_port: int = setting(
        10911,
        "Port for clients; the same requests are answered on listenPort - 2. 0: free ports.",
        **PORT_BOUNDS,
    )
    bind_address: str = setting(
        "127.0.0.1",
        "Address to listen on. 0.0.0.0: all interfaces.",
        upstream="0.0.0.0",
        why="a new broker is not open to the network by default",
        check=_check_bound,
    )
    broker_ip1: str = setting(
        "",
        "Address that routes and message ids carry; empty: the one by which a client reached us.",
        key="brokerIP1",
        check=check_host,
    )
    advertised_addr: str = setting(
        "",
        "HOST:PORT given to clients from outside our networks or through a port mapping.",
        ours=True,
        check=check_host_port,
    )
    internal_networks: str = setting(
        "",
        "Networks whose clients never get advertisedAddr; empty: those of our interfaces.",
        unit="10.0.0.0/8,...",
        ours=True,
        check=_check_networks,
    )
    namesrv_listen_port: int = setting(
        9876,
        "Port of the name service inside this process. 0: a free one, -1: off.",
        low=-1,
        high=65535,
        ours=True,
    )
    namesrv_addr: str = setting(
        "",
        "Name servers to register with, separated by ; (or the variable NAMESRV_ADDR).",
        unit="host:port;...",
        check=_check_name_servers,
    )
    server_socket_backlog: int = setting(1024, "Backlog of the listening sockets.", low=1)
    server_socket_snd_buf_size: int = setting(
        0, "SO_SNDBUF of a client's socket; 0: the system's.", unit="bytes", low=0
    )
    server_socket_rcv_buf_size: int = setting(
        0, "SO_RCVBUF of a client's socket; 0: the system's.", unit="bytes", low=0
    )

    # --- connections
    server_channel_max_idle_time_seconds: int = setting(
        120, "An idle connection is closed after this time.", unit="s", low=1
    )
    frame_timeout_seconds: int = setting(
        30,
        "Time to receive a whole frame; then the connection is closed.",
        unit="s",
        low=1,
        ours=True,
    )
    frame_max_length: int = setting(
        16777216, "Largest frame accepted.", unit="bytes", low=4096, high=1 << 30, ours=True
    )
    max_connections: int = setting(
        0,
        "Connections at a time at most; 0: what the limit of open files allows.",
        low=0,
        ours=True,
    )
    write_buffer_high_water_mark: int = setting(
        0,
        "Unsent bytes of a connection at which we stop reading from it; 0: 1 MiB.",
        unit="bytes",
        low=0,
    )
    shutdown_wait_time_seconds: int = setting(
        30,
        "How long a stop waits for requests in progress.",
        unit="s",
        low=0,
        runtime=True,
    )

    # --- registration with name servers
    register_name_server_period: int = setting(
        30000,
        "Interval of registration, limited to 10 to 60 s.",
        unit="ms",
        low=1,
        runtime=True,
    )
    register_broker_timeout_mills: int = setting(
        24000,
        "Timeout of a registration with one name server.",
        unit="ms",
        low=1,
        runtime=True,
    )
    force_register: bool = setting(
        True, "Register each period even if the name server already has our topics.", runtime=True
    )
    compressed_register: bool = setting(
        False, "Send the registration in its compressed form.", runtime=True
    )

    # --- the name service
    kv_config_path: str = setting(
        "",
        "File of the name service's key-value table; empty: in the store's config folder.",
        upstream="$HOME/namesrv/kvConfig.json",
        why="one process keeps all it has in one folder",
    )
    max_kv_config_bytes: int = setting(
        16 << 20,
        "Largest size of the name service's key-value table; each key counts 200 bytes.",
        unit="bytes",
        low=0,
        ours=True,
        runtime=True,
    )
    order_message_enable: bool = setting(
        False, "Put the order configuration of a topic into its route.", runtime=True
    )
    return_order_topic_config_to_broker: bool = setting(
        True, "Answer a registration with the order configurations.", runtime=True
    )
    enable_all_topic_list: bool = setting(
        True, "Answer requests for the list of all topics.", runtime=True
    )
    enable_topic_list: bool = setting(
        True,
        "Answer requests for the lists of a cluster's topics and of unit topics.",
        runtime=True,
    )
    scan_not_active_broker_interval: int = setting(
        5000,
        "Interval of the name service's check for brokers without a heartbeat.",
        unit="ms",
        low=100,
    )
    delete_topic_with_broker_registration: bool = setting(
        False,
        "Remove a topic from the routes if a broker's full registration lacks it.",
        runtime=True,
    )

    # --- logs
    log_level: str = setting(
        "info",
        "Lowest level that is logged.",
        choices=("debug", "info", "warning", "error"),
        runtime=True,
        ours=True,
    )
    log_format: str = setting(
        "auto",
        "auto: readable on a terminal, JSON otherwise.",
        choices=("auto", "console", "json"),
        ours=True,
    )

    # --- metrics
    metrics_exporter_type: str = setting(
        "PROM",
        "PROM: serve metrics and health at metricsPromExporterPort; DISABLE: do not.",
        choices=("DISABLE", "PROM"),
        upstream="DISABLE",
        why="they cost nothing until they are read, and listen on loopback only",
    )
    metrics_prom_exporter_port: int = setting(
        5557,
        "HTTP port of /metrics, /healthz, /readyz and /console/. 0: a free one.",
        **PORT_BOUNDS,
    )
    metrics_prom_exporter_host: str = setting("", "Address of that port; empty: loopback only.")
    metrics_label: str = setting("", "Labels added to every metric.", unit="k:v,k:v")

    # --- the console, at the metrics' port
    console_enable: bool = setting(
        True, "Serve the console in a process of its own, started on the first request.", ours=True
    )
    console_write: bool = setting(
        False, "Whether the console may change anything; off: read-only.", ours=True
    )
    console_token: str = setting(
        "",
        "Required of every browser; beyond loopback this or consoleAuthHeader is needed.",
        ours=True,
        secret=True,
    )
    console_hosts: str = setting(
        "", "Host names besides localhost that browsers may use.", unit="name,name", ours=True
    )
    console_auth_header: str = setting(
        "", "The header with the user's name, set by a proxy; then required.", ours=True
    )
    console_proxies: str = setting(
        "", "Proxies that may set that header.", unit="address,network", ours=True
    )
    console_bodies: bool = setting(True, "Whether the console shows message bodies.", ours=True)
    console_idle_seconds: int = setting(
        900,
        "The console's process ends after this time without a request.",
        unit="s",
        low=1,
        ours=True,
    )
