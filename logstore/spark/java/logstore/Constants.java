package logstore;

import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.types.UTF8String;

/** Columns with one value for all rows of a batch. */
final class Constants {
    private Constants() {}

    static ColumnVector text(int rows, String value) {
        ConstantColumnVector column = new ConstantColumnVector(rows, DataTypes.StringType);
        column.setUtf8String(UTF8String.fromString(value));
        return column;
    }

    /** Of the types boolean, int or bigint. */
    static ColumnVector number(int rows, DataType type, long value) {
        ConstantColumnVector column = new ConstantColumnVector(rows, type);
        if (type.equals(DataTypes.BooleanType)) {
            column.setBoolean(value != 0);
        } else if (type.equals(DataTypes.IntegerType)) {
            column.setInt((int) value);
        } else {
            column.setLong(value);
        }
        return column;
    }
}
