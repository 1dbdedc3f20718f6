package logstore;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What one query wants of a table. Which filters are exact, Python decides. */
final class LogstoreScanBuilder
        implements SupportsPushDownV2Filters,
            SupportsPushDownRequiredColumns,
            SupportsPushDownLimit,
            SupportsPushDownAggregates {
    /** The same in all of a segment, so counts by them need no record. Never null. */
    private static final Set<String> OF_SEGMENT = Set.of("topic", "partition", "broker", "segment");

    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Requests requests = new Requests(Python.ofSession());

    private Predicate[] predicates = {};
    private StructType required;
    private int limit = LogstoreScan.Query.NO_LIMIT;
    private int counts = 0;

    LogstoreScanBuilder(StructType schema, CaseInsensitiveStringMap options) {
        this.schema = schema;
        this.options = options;
        this.required = schema;
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] wanted) {
        boolean[] exact = requests.exactFilters(options, schema, wanted);
        List<Predicate> left = new ArrayList<>();
        for (int i = 0; i < wanted.length; i++) {
            if (!exact[i]) {
                left.add(wanted[i]);
            }
        }
        predicates = wanted;
        return left.toArray(new Predicate[0]);
    }

    /** All: one that is not exact still narrows what is read. */
    @Override
    public Predicate[] pushedPredicates() {
        return predicates;
    }

    @Override
    public void pruneColumns(StructType columns) {
        required = columns;
    }

    @Override
    public boolean pushLimit(int rows) {
        limit = rows;
        return true;
    }

    /** Spark offers it only where no filter is left for it. */
    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        StructType columns = new StructType();
        for (Expression group : aggregation.groupByExpressions()) {
            String name = nameOf(group);
            if (!OF_SEGMENT.contains(name)) {
                return false;
            }
            columns = columns.add(schema.apply(name));
        }
        AggregateFunc[] functions = aggregation.aggregateExpressions();
        for (int i = 0; i < functions.length; i++) {
            if (!isRowCount(functions[i])) {
                return false;
            }
            columns = columns.add("count" + i, DataTypes.LongType);
        }
        counts = functions.length;
        required = columns;
        return true;
    }

    private static boolean isRowCount(AggregateFunc function) {
        return function instanceof CountStar
            || function instanceof Count count
                && !count.isDistinct()
                && isNeverNull(nameOf(count.column()));
    }

    private static boolean isNeverNull(String column) {
        return OF_SEGMENT.contains(column) || column.equals("offset");
    }

    private static String nameOf(Expression expression) {
        return expression instanceof NamedReference column && column.fieldNames().length == 1
            ? column.fieldNames()[0]
            : "";
    }

    @Override
    public Scan build() {
        return new LogstoreScan(
            new LogstoreScan.Query(options, schema, required, predicates, counts, limit));
    }
}
