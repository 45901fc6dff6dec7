# Clients that others wrote, against a real broker: Java (needs a JDK and Maven), Go, Node.
.PHONY: test-clients
test-clients: $(OK) ## Apache's Java clients and mqadmin, the Go and the Node client (JDK, Maven, Go, Node.js)
	$(V)/bin/pytest -q tests/clients $(ARGS)

.PHONY: test-peers
test-peers: $(OK) ## all but the exchange of stores that needs Apache RocketMQ, its clients, Go or Node
	$(V)/bin/pytest -q -m "(apache or go or node) and not spark and not slow and not root" \
	  --ignore=tests/exchange --ignore=tests/services $(ARGS)
