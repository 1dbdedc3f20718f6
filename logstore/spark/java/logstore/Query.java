package logstore;

import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What one query wants: columns {@code required} of a table with {@code schema}. The last {@code
 * counts} of them are numbers of rows, for each value of those before. A task gives at most {@code
 * limit} rows.
 */
record Query(
        CaseInsensitiveStringMap options,
        StructType schema,
        StructType required,
        Predicate[] predicates,
        int counts,
        int limit) {
    static final int NO_LIMIT = -1;
}
