"""Three machines in network namespaces, each with an etcd member and a broker; and faults
on them: `make chaos N=200`."""
