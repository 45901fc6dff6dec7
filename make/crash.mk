# Power cuts on a simulated disk and on real file systems, kills of a real process, a full disk.
IMAGES ?= 20000
N      ?= 200
export CUTS ?= 1
SEED   ?= 1
SHARE  ?= 1
PART   ?= 0
FS     ?= ext4 xfs
FLUSH  ?= SYNC_FLUSH
CRASH  := cd tests && ../$(V)/bin/python -m
# A mount of which another mount namespace has a copy (`ip netns exec` makes one) outlives its umount.
MOUNTS := unshare --mount --propagation private

.PHONY: crashsim crashsim-quick planted-bugs iofaults killtest powercut powercut-blocks powercut-machine powercut-kernel fulldisk test-full-disk test-dead-device test-exchange
crashsim: $(OK) ## the real store on a disk that loses power, IMAGES=20000; and every planted bug
	$(CRASH) crash.run $(IMAGES)
	$(V)/bin/pytest -q tests/crash -m "slow and not root" $(ARGS)

crashsim-quick: $(OK) ## the share of crashsim for every change: some images, every planted bug
	$(CRASH) crash.run 6000
	$(V)/bin/pytest -q tests/crash -m "slow and not root" $(ARGS)

planted-bugs: $(OK) ## the bugs that tests plant for the simulators, flips, journals, clocks and replicas: each is found
	$(V)/bin/pytest -q tests/crash tests/ha/test_simulation.py -m "not root" -k "simulator_catches or planted_bug" $(ARGS)

iofaults: $(OK) ## every call to the disk fails, once and for ever (SHARE=8 PART=0: one fault of eight; FAULTS="short slow"; about 40 minutes)
	$(CRASH) crash.io_faults $(SHARE) $(PART) $(FAULTS)

killtest: $(OK) ## SIGKILLs of a writing broker and of its starts, N=200, half of them in each flush mode
	$(CRASH) crash.killer $(N) $(SEED)

powercut: $(OK) ## power cuts of ext4 and xfs under a broker, N=200 of each (root; FS=ext4 FLUSH="SYNC_FLUSH ASYNC_FLUSH")
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.powercut $(N) --fs $(FS) --flush $(FLUSH) --seed $(SEED) $(ARGS)

powercut-blocks: $(OK) ## images of a disk at any write of a broker, without some of what was not flushed, N=200 of each FS (root, /dev/fuse)
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.powercut.images $(N) --fs $(FS) --seed $(SEED) $(ARGS)

powercut-machine: $(OK) ## a whole machine (QEMU) that is cut off under a broker, N=200 times (root; qemu-system-x86, busybox-static, linux-image-amd64)
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.powercut.machine $(N) --seed $(SEED)

powercut-kernel: $(OK) ## what fdatasync promises while a file system goes down, without a broker (root, cc)
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.sync_at_shutdown $(N) $(SEED)

fulldisk: $(OK) ## a 64 MB disk filled up under a broker, N=200 times (root)
	cd tests && $(MOUNTS) ../$(V)/bin/python -m crash.full_disk $(N) $(SEED)

test-full-disk: $(OK) ## a 64 MB disk filled up (needs root for a loop mount)
	$(MOUNTS) $(V)/bin/pytest -q tests/crash/test_full_disk.py tests/broker/test_daemon.py -m root $(ARGS)

test-dead-device: $(OK) ## file systems shut down under a running broker, bad sectors, images at any write (root, xfsprogs, /dev/fuse; CUTS=6)
	$(MOUNTS) $(V)/bin/pytest -q tests/crash/test_dead_device.py tests/crash/test_bad_sectors.py tests/crash/test_block_images.py -m root $(ARGS)

test-exchange: $(OK) ## one store folder in turns under Apache RocketMQ and Aerobee (JDK, Maven)
	$(V)/bin/pytest -q tests/exchange tests/services -m "apache and not slow" $(ARGS)
