# Clients that others wrote, against a real broker: Java (needs a JDK and Maven), Go, Node.
.PHONY: test-clients
test-clients: $(OK) ## Apache's Java clients and mqadmin, the Go and the Node client (JDK, Maven, Go, Node.js)
	$(V)/bin/pytest -q tests/clients $(ARGS)
