# Tests that need root: a real systemd in systemd-nspawn, real containers with podman.
.PHONY: test-systemd test-container
test-systemd: $(OK) ## the service in a booted systemd (root; systemd-container, mmdebstrap)
	$(V)/bin/pytest -q tests/system/test_systemd.py $(ARGS)

test-container: $(OK) ## image and cluster with podman (root; podman, runc, mmdebstrap)
	$(V)/bin/pytest -q tests/system/test_container.py $(ARGS)

.PHONY: test-package
test-package: $(OK) ## build wheel and sdist from a fresh clone, install and run the wheel
	$(V)/bin/pytest -q tests/packaging $(ARGS)
