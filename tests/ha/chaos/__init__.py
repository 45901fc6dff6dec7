"""Three machines in network namespaces, each with an etcd member and a broker; and what befalls
them: `make chaos N=200`."""
