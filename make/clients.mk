# Third-party clients against a real broker: Java (JDK, Maven), Go, Node, C++ (x86-64 Linux), Rust.
.PHONY: test-clients
test-clients: $(OK) ## Apache's Java clients and mqadmin, the Go, Node and C++ clients (JDK, Maven, Go, Node.js)
	$(V)/bin/pytest -q -m "not rust" tests/clients $(ARGS)

# Apart, as the first build of the client takes minutes.
.PHONY: test-rust
test-rust: $(OK) ## the Rust client rocketmq-client-rust (Cargo)
	$(V)/bin/pytest -q -m rust tests/clients $(ARGS)

.PHONY: test-peers
test-peers: $(OK) ## all tests that need Apache RocketMQ, its clients, Go, Node or C++, except the exchange of stores
	$(V)/bin/pytest -q -n 2 --dist loadfile -m "(apache or go or node or cpp) and not browser and not spark and not slow and not root" \
	  --ignore=tests/exchange --ignore=tests/services $(ARGS)
