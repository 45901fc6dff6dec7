# Spark: a venv of its own, because PySpark is large and needs Java 17. `make test` does without.
SV := .venv-spark
# They open the tables that the pipeline keeps. DuckDB's extensions are of its own version, and the
# newest that pip has is 1.5.5.
READERS := polars duckdb==1.5.5 duckdb-extensions $(patsubst %,duckdb-extension-%==1.5.5,avro iceberg delta)
SV_OK := $(SV)/.installed
SV41 := .venv-spark41
SV41_OK := $(SV41)/.installed

$(SV_OK): pyproject.toml
	@echo "setting up $(SV) with the newest PySpark (once, a few minutes)"
	@$(PY) -m venv $(SV)
	@$(SV)/bin/pip install -q --disable-pip-version-check -e '.[dev,lake]' $(READERS)
	@touch $@

$(SV41_OK): pyproject.toml
	@echo "setting up $(SV41) with PySpark 4.1 (once, a few minutes)"
	@$(PY) -m venv $(SV41)
	@$(SV41)/bin/pip install -q --disable-pip-version-check -e '.[dev,lake]' 'pyspark==4.1.*' $(READERS)
	@touch $@

KILLS ?= 100
SEAMS ?= 50

.PHONY: test-spark test-spark-full test-spark-41 test-table-kills test-sink-kills test-executor-kills test-sink-failovers test-replay-kills test-seam \
	bench-spark bench-spark-kafka bench-table
test-spark: $(SV_OK) ## the Spark pipeline on the newest PySpark (Java 17)
	$(SV)/bin/pytest -q -m "not slow and not apache" tests/spark $(ARGS)
	$(SV)/bin/pytest -q -m "spark and not slow" tests/docs $(ARGS)

test-spark-full: $(SV_OK) ## the same with a standalone cluster, Connect, long runs and Apache RocketMQ
	$(SV)/bin/pytest -q --timeout 600 tests/spark $(ARGS)
	$(SV)/bin/pytest -q -m spark tests/docs $(ARGS)

test-spark-41: $(SV41_OK) ## the Spark pipeline on PySpark 4.1, with Delta and Iceberg
	$(SV41)/bin/pytest -q --timeout 600 -m "not apache" tests/spark $(ARGS)

# On Spark 4.1, for which Delta and Iceberg have jars: Spark opens all three formats after each kill.
test-table-kills: $(SV41_OK) ## kills under kept tables: KILLS=100 of the driver, a fifth each of worker and broker; ARGS=30: no new round after 30 minutes
	cd tests && ../$(SV41)/bin/python -m spark.table_kills $(KILLS) $(or $(SEED),1) $(ARGS)

test-sink-kills: $(SV_OK) ## kills under the exactly-once sink: KILLS=100 of the driver, a fifth each of worker and broker; ARGS=30: no new round after 30 minutes
	cd tests && ../$(SV)/bin/python -m spark.sink_kills $(KILLS) $(or $(SEED),1) $(ARGS)

test-executor-kills: $(SV41_OK) ## KILLS=20 of an executor of a standalone cluster, under the exactly-once sink and under kept tables
	cd tests && ../$(SV41)/bin/python -m spark.executor_kills $(KILLS) $(or $(SEED),1)

test-sink-failovers: $(SV_OK) ## KILLS=20 of masters under a stream that writes exactly once: three brokers and etcd (Debian's etcd-server)
	cd tests && ../$(SV)/bin/python -m spark.sink_failovers $(KILLS) $(SEED)

test-replay-kills: $(SV_OK) ## KILLS=20 of a replay: every message once
	KILLS=$(KILLS) SEED=$(SEED) $(SV)/bin/pytest -q --timeout 3600 tests/spark/test_replay.py -k killed $(ARGS)

test-seam: $(SV_OK) ## history and present as one over SEAMS=50 random cuts of retention
	SEAMS=$(SEAMS) SEED=$(SEED) $(SV)/bin/pytest -q tests/spark/test_history.py -k random_cuts $(ARGS)

bench-spark: $(SV_OK) ## MB/s of topic read, offline read and write beside Parquet (Java 17)
	$(SV)/bin/python -m bench.spark --out bench/results $(ARGS)

# On Spark 4.1, for which Spark's connector of Kafka has a release; 4.3 has none yet.
bench-spark-kafka: $(SV41_OK) ## rows/s and CPU of reads and writes beside spark-sql-kafka-0-10 and a real Kafka
	$(SV41)/bin/python -m bench.spark_kafka $(ARGS)

bench-table: $(SV_OK) ## rows/s, CPU and freshness of kept tables beside Spark's own Parquet sink
	$(SV)/bin/python -m bench.table --out bench/results $(ARGS)
