# Figures: each one that the README states comes from one of these. bench/README.md explains them.
BENCH_OK := $(V)/.bench-installed

$(BENCH_OK): $(OK)
	@$(V)/bin/pip install -q --disable-pip-version-check 'matplotlib>=3.8'
	@touch $@

# FULL=1: the whole matrix. PEERS=1, or PEERS=nats,redis: other kinds of brokers instead.
.PHONY: bench-compare
bench-compare: $(BENCH_OK) ## Aerobee beside Apache RocketMQ (JDK, Maven, cc; FULL=1: all rows; PEERS=1: NATS, Kafka, Redis)
ifdef PEERS
	$(V)/bin/python -m bench.peers $(if $(filter-out 1,$(PEERS)),--only $(PEERS)) $(ARGS)
else
	$(V)/bin/python -m bench.compare $(if $(FULL),--full) $(ARGS)
endif

.PHONY: bench-ab
bench-ab: $(BUILD_OK) ## CPU per message beside that of another commit, in turns (BASE=<commit>; ARGS="--pairs 9")
	$(V)/bin/python -m bench.ab $(BASE) $(ARGS)

.PHONY: bench-quick
bench-quick: $(OK) ## CPU per message beside the recorded figures; fails when a quarter was lost
	$(V)/bin/python -m bench.quick $(ARGS)

.PHONY: bench-creations
bench-creations: $(OK) ## sends while another client creates topics, on a disk with slow syncs; 20,000 topics, groups, keys
	$(V)/bin/python -m bench.creations $(ARGS)

.PHONY: bench-viewers
bench-viewers: $(OK) ## sends with five viewers of the console and with none, in turns; fails above x1.10
	$(V)/bin/python -m bench.viewers $(ARGS)

.PHONY: bench-growth
bench-growth: $(BENCH_OK) ## CPU per message as queues, connections, groups, timers, bodies, log grow (cc, 25 GB; ARGS="--with apache-4.9")
	$(V)/bin/python -m bench.growth $(ARGS)

.PHONY: bench-ceiling
bench-ceiling: $(OK) ## pulls a second that loopback and load client allow, CPU of sending a log: C programs in the broker's place (needs cc)
	$(V)/bin/python -m bench.ceiling $(ARGS)
