package logstore;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What one query wants of a table. Which filters are exact, Python decides. */
final class LogstoreScanBuilder
        implements SupportsPushDownV2Filters,
            SupportsPushDownRequiredColumns,
            SupportsPushDownLimit,
            SupportsPushDownTopN,
            SupportsPushDownAggregates {
    /** The same in all of a segment, so groups of them need no record. */
    private static final Set<String> OF_SEGMENT = Set.of("topic", "partition", "broker", "segment");

    /** A count of any other column is a count of rows. */
    private static final Set<String> MAY_BE_NULL =
        Set.of("key", "value", "headers", "timestamp", "baseTimestamp", "maxTimestamp");

    private static final Set<String> HAS_EXTREMES = Set.of("offset", "timestamp");

    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Requests requests = new Requests(Python.ofSession());

    private Predicate[] predicates = {};
    private Predicate[] left = {};
    private StructType required;
    private List<String> aggregates = List.of();
    private int limit = LogstoreScan.Query.NO_LIMIT;
    private LogstoreScan.Order order = LogstoreScan.Order.ANY;

    LogstoreScanBuilder(StructType schema, CaseInsensitiveStringMap options) {
        this.schema = schema;
        this.options = options;
        this.required = schema;
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] wanted) {
        boolean[] exact = requests.exactFilters(options, schema, wanted);
        List<Predicate> others = new ArrayList<>();
        for (int i = 0; i < wanted.length; i++) {
            if (!exact[i]) {
                others.add(wanted[i]);
            }
        }
        predicates = wanted;
        left = others.toArray(new Predicate[0]);
        return left;
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

    /** Spark offers it, as the two below, only where no filter is left for it. */
    @Override
    public boolean pushLimit(int rows) {
        limit = rows;
        return true;
    }

    @Override
    public boolean pushTopN(SortOrder[] orders, int rows) {
        if (orders.length != 1 || !nameOf(orders[0].expression()).equals("offset")) {
            return false;
        }
        limit = rows;
        order = orders[0].direction() == SortDirection.ASCENDING
            ? LogstoreScan.Order.LOWEST_OFFSETS
            : LogstoreScan.Order.HIGHEST_OFFSETS;
        return true;
    }

    /** Of a limit and of an order: Spark takes the rows that it needs from those of all tasks. */
    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    /** Each task answers for itself: Spark adds the counts, and takes the least of the least. */
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
        List<String> found = new ArrayList<>();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            String name = aggregate(function);
            if (name.isEmpty()) {
                return false;
            }
            columns = columns.add(name + found.size(), typeOf(name));
            found.add(name);
        }
        aggregates = found;
        required = columns;
        return true;
    }

    /** As Python knows it; empty for one that takes more than headers, offsets and times. */
    private static String aggregate(AggregateFunc function) {
        if (function instanceof CountStar) {
            return "count(*)";
        }
        if (function instanceof Count count && !count.isDistinct()) {
            String column = nameOf(count.column());
            return column.isEmpty() || MAY_BE_NULL.contains(column) ? "" : "count(*)";
        }
        if (function instanceof Min min) {
            return extreme("min", nameOf(min.column()));
        }
        return function instanceof Max max ? extreme("max", nameOf(max.column())) : "";
    }

    private static String extreme(String function, String column) {
        return HAS_EXTREMES.contains(column) ? function + "(" + column + ")" : "";
    }

    private static DataType typeOf(String aggregate) {
        return aggregate.endsWith("(timestamp)") ? DataTypes.TimestampType : DataTypes.LongType;
    }

    private static String nameOf(Expression expression) {
        return expression instanceof NamedReference column && column.fieldNames().length == 1
            ? column.fieldNames()[0]
            : "";
    }

    @Override
    public Scan build() {
        return new LogstoreScan(
            new LogstoreScan.Query(
                options, schema, required, predicates, left, aggregates, limit, order));
    }
}
