# Replicas: the state machines and real stores on simulated disks, links and operators.
RUNS ?= 5000

.PHONY: hasim
hasim: $(OK) ## two and three replicas through crashes, cuts, promotions and failovers, RUNS=5000; and every planted bug
	cd tests && ../$(V)/bin/python -m ha.simulation.run $(RUNS)
	$(V)/bin/pytest -q tests/ha/test_simulation.py $(ARGS)

.PHONY: test-failover
test-failover: $(OK) ## automatic failover: brokers and a real etcd (Debian's etcd-server), kills and freezes
	$(V)/bin/pytest -q -m etcd tests/ha $(ARGS)

.PHONY: bench-replicas
bench-replicas: $(OK) ## a master and its slave beside Apache's own pair (JDK, Maven, cc; ARGS="--pairs 3")
	$(V)/bin/python -m bench.replicas $(ARGS)

.PHONY: chaos
chaos: $(OK) ## three machines in network namespaces, cuts, kills, freezes, full disks, clocks; N=200 (root; etcd-server, iproute2, cc; ARGS="--seed 2")
	cd tests && ../$(V)/bin/python -m ha.chaos.run $(N) $(ARGS)
