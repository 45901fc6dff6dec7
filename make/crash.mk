# Power cuts on a simulated disk, kills of a real process, a disk that is full.
IMAGES ?= 20000

.PHONY: crashsim
crashsim: $(OK) ## the real store on a disk that loses power, IMAGES=20000; and every planted bug
	IMAGES=$(IMAGES) $(V)/bin/pytest -q -s tests/crash $(ARGS)
