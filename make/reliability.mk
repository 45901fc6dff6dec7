# The fault lab: every fault at its full size, one row of bench/results/reliability.md each.
.PHONY: reliability
reliability: $(OK) ## run a row of the fault lab and write it down (ROW="bitflips N=500"; without: the rows there are)
	$(V)/bin/python -m bench.reliability $(ROW)

.PHONY: bitflips
bitflips: $(OK) ## single bits of a store's files flipped, N=200 in each kind of file (SHARE=20 PART=0: one part of twenty)
	$(CRASH) crash.bit_flips $(N) $(SEED) $(SHARE) $(PART) $(KINDS)

.PHONY: clockjumps
clockjumps: $(OK) ## the clock set by an hour or ten years under a working broker, N=200 times
	$(CRASH) crash.clock_jumps $(N) $(SEED)

MINUTES ?= 30
QUEUES  ?= 20000

.PHONY: chaos-broker
chaos-broker: $(OK) ## all faults at once to a master and its slave under Java, Go and Python clients, MINUTES=20 SEED=1 (root, JDK, Maven, Go)
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: memory manyqueues
memory: $(OK) ## full load in a memory cgroup of 512 MiB, MINUTES=30 (root, cc)
	$(V)/bin/python -m bench.memory --minutes $(MINUTES) $(ARGS)

manyqueues: $(OK) ## open files, maps and memory with a message in each of QUEUES=20000
	$(V)/bin/python -m bench.memory --queues $(QUEUES)
