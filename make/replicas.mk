# Replicas: the state machines and real stores on simulated disks, links and operators.
RUNS ?= 5000

.PHONY: hasim
hasim: $(OK) ## two and three replicas through crashes, cuts and promotions, RUNS=5000; and every planted bug
	cd tests && ../$(V)/bin/python -m ha.simulation.run $(RUNS)
	$(V)/bin/pytest -q tests/ha/test_simulation.py $(ARGS)
