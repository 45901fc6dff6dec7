# The message services: delays, timers, retries, transactions, filters.
.PHONY: test-services test-services-exchange bench-timers
test-services: $(OK) ## delays, timers, retries, transactions, filters
	$(V)/bin/pytest -q tests/services -m '$(QUICK)' $(ARGS)

test-services-exchange: $(OK) ## pending timers and transactions that go to Apache's broker and back
	$(V)/bin/pytest -q tests/services/test_exchange_with_apache.py $(ARGS)

bench-timers: $(OK) ## a million pending timers: memory, cost of setting one, cost of a tick
	$(V)/bin/python -m bench.timers $(ARGS)
