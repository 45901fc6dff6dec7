package aerobee;

// The tables of a Spark catalog are the topics of a cluster. Spark takes catalogs in Java only, and
// the compiler that it brings along for its own code (Janino) builds this in the running driver:
// see register.py. All that concerns messages is in the Python source `aerobee`; here its reader is
// told which columns a query uses, or that it only counts, for which Spark has no interface in Python.

import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Tuple2;
import scala.collection.Iterator;

public class TopicCatalog implements TableCatalog {
    private static final String REFUSED =
        "the catalog reads and writes topics; make, change and delete them with `aerobee topic`";
    private String name;

    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
    }

    public String name() {
        return name;
    }

    /** As the session has them now: Spark keeps a catalog for as long as the session lives. */
    private Map options() {
        String prefix = "spark.sql.catalog." + name + ".";
        Map found = new HashMap();
        Iterator all = SparkSession.active().conf().getAll().iterator();
        while (all.hasNext()) {
            Tuple2 one = (Tuple2) all.next();
            String key = (String) one._1();
            if (key.startsWith(prefix)) {
                found.put(key.substring(prefix.length()), one._2());
            }
        }
        return found;
    }

    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length > 0) {
            throw new NoSuchNamespaceException(namespace);
        }
        List rows = SparkSession.active().read().format("aerobee").options(options())
            .option("catalog", "topics").load().collectAsList();
        Identifier[] topics = new Identifier[rows.size()];
        for (int i = 0; i < topics.length; i++) {
            topics[i] = Identifier.of(namespace, ((Row) rows.get(i)).getString(0));
        }
        return topics;
    }

    public Table loadTable(Identifier ident) throws NoSuchTableException {
        if (ident.namespace().length > 0) {
            throw new NoSuchTableException(ident);
        }
        return new TopicTable(ident.name(), options()); // which says so where there is no such topic
    }

    public boolean tableExists(Identifier ident) {
        try {
            return loadTable(ident) != null;
        } catch (Exception error) {
            if (!String.valueOf(error.getMessage()).contains("does not exist on this cluster")) {
                Platform.throwException(error); // not an answer; Spark's errors are checked ones
            }
            return false;
        }
    }

    public Table createTable(
            Identifier ident, StructType schema, Transform[] partitions, Map properties) {
        throw new UnsupportedOperationException(REFUSED);
    }

    public Table alterTable(Identifier ident, TableChange[] changes) {
        throw new UnsupportedOperationException(REFUSED);
    }

    public boolean dropTable(Identifier ident) {
        throw new UnsupportedOperationException(REFUSED);
    }

    public void renameTable(Identifier from, Identifier to) {
        throw new UnsupportedOperationException(REFUSED);
    }
}

class TopicTable implements SupportsRead, SupportsWrite {
    private final String topic;
    private final Map connection;
    private final StructType columns;

    TopicTable(String topic, Map connection) {
        this.topic = topic;
        this.connection = connection;
        Map asked = with("subscribe", new HashMap());
        asked.put("catalog", "table"); // an error where there is no such topic
        this.columns = provider().inferSchema(new CaseInsensitiveStringMap(asked));
    }

    /** A new one each time: it remembers the first read that it was used for. */
    static TableProvider provider() {
        return (TableProvider)
            DataSource$.MODULE$.lookupDataSourceV2("aerobee", SQLConf$.MODULE$.get()).get();
    }

    private Map with(String option, Map given) {
        Map all = new HashMap(connection);
        all.put(option, topic);
        all.putAll(given);
        return all;
    }

    public String name() {
        return topic;
    }

    public StructType schema() {
        return columns;
    }

    public Set capabilities() {
        return EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE,
            TableCapability.ACCEPT_ANY_SCHEMA);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        Map options = with("subscribe", given.asCaseSensitiveMap());
        return new TopicScanBuilder(columns, new CaseInsensitiveStringMap(options));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map options = with("topic", info.options().asCaseSensitiveMap());
        Table plain = provider().getTable(info.schema(), new Transform[0], options);
        return ((SupportsWrite) plain).newWriteBuilder(
            new TopicWriteInfo(info, new CaseInsensitiveStringMap(options)));
    }
}

class TopicWriteInfo implements LogicalWriteInfo {
    private final LogicalWriteInfo given;
    private final CaseInsensitiveStringMap options;

    TopicWriteInfo(LogicalWriteInfo given, CaseInsensitiveStringMap options) {
        this.given = given;
        this.options = options;
    }

    public CaseInsensitiveStringMap options() {
        return options;
    }

    public String queryId() {
        return given.queryId();
    }

    public StructType schema() {
        return given.schema();
    }
}

class TopicScanBuilder implements
        SupportsPushDownFilters, SupportsPushDownRequiredColumns, SupportsPushDownAggregates {
    private static final String[] NOT_BY_OFFSETS = {"tags", "sql", "history"};
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final SupportsPushDownFilters whole;
    private StructType used;
    private boolean counts;

    TopicScanBuilder(StructType columns, CaseInsensitiveStringMap options) {
        this.columns = columns;
        this.options = options;
        this.used = columns;
        this.whole = builder(columns, options.asCaseSensitiveMap());
    }

    private SupportsPushDownFilters builder(StructType wanted, Map given) {
        Table plain = TopicTable.provider().getTable(wanted, new Transform[0], given);
        return (SupportsPushDownFilters) ((SupportsRead) plain)
            .newScanBuilder(new CaseInsensitiveStringMap(given));
    }

    public Filter[] pushFilters(Filter[] all) {
        return whole.pushFilters(all);
    }

    public Filter[] pushedFilters() {
        return whole.pushedFilters();
    }

    /** Called after pushFilters, whose columns a Python source must have; and it must have one. */
    public void pruneColumns(StructType wanted) {
        Set names = new HashSet(Arrays.asList(wanted.fieldNames()));
        Filter[] pushed = pushedFilters();
        for (int i = 0; i < pushed.length; i++) {
            names.addAll(Arrays.asList(pushed[i].references()));
        }
        if (names.isEmpty()) {
            names.add("offset");
        }
        used = new StructType();
        for (int i = 0; i < columns.length(); i++) {
            StructField one = columns.apply(i);
            used = names.contains(one.name()) ? used.add(one) : used;
        }
    }

    /** All messages are counted by the offsets of the queues, of which no message has to be read. */
    public boolean pushAggregation(Aggregation asked) {
        AggregateFunc[] results = asked.aggregateExpressions();
        counts = asked.groupByExpressions().length == 0 && results.length == 1
            && results[0] instanceof CountStar && pushedFilters().length == 0;
        for (int i = 0; i < NOT_BY_OFFSETS.length; i++) {
            counts = counts && !options.containsKey(NOT_BY_OFFSETS[i]);
        }
        return counts;
    }

    public Scan build() {
        if (counts) {
            Map given = new HashMap(options.asCaseSensitiveMap());
            given.put("catalog", "count");
            return builder(StructType.fromDDL("messages bigint"), given).build();
        }
        if (used.equals(columns)) {
            return whole.build();
        }
        SupportsPushDownFilters narrow = builder(used, options.asCaseSensitiveMap());
        narrow.pushFilters(whole.pushedFilters());
        return narrow.build();
    }
}
