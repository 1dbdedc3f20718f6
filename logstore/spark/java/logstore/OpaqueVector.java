package logstore;

import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of Arrow's that Spark does not know for one. Where the first column of a batch is an
 * {@code ArrowColumnVector}, Spark 4.3 lets Python functions queue batches beside the results of the
 * functions below them, whose vectors are filled anew with each batch: of two such operators, one
 * over the other, the upper one gives values of another batch, or fails. With any other column there
 * it copies the rows.
 */
final class OpaqueVector extends ColumnVector {
    private final ColumnVector column;

    OpaqueVector(ColumnVector column) {
        super(column.dataType());
        this.column = column;
    }

    @Override
    public void close() {
        column.close();
    }

    @Override
    public boolean hasNull() {
        return column.hasNull();
    }

    @Override
    public int numNulls() {
        return column.numNulls();
    }

    @Override
    public boolean isNullAt(int row) {
        return column.isNullAt(row);
    }

    @Override
    public boolean getBoolean(int row) {
        return column.getBoolean(row);
    }

    @Override
    public byte getByte(int row) {
        return column.getByte(row);
    }

    @Override
    public short getShort(int row) {
        return column.getShort(row);
    }

    @Override
    public int getInt(int row) {
        return column.getInt(row);
    }

    @Override
    public long getLong(int row) {
        return column.getLong(row);
    }

    @Override
    public float getFloat(int row) {
        return column.getFloat(row);
    }

    @Override
    public double getDouble(int row) {
        return column.getDouble(row);
    }

    @Override
    public ColumnarArray getArray(int row) {
        return column.getArray(row);
    }

    @Override
    public ColumnarMap getMap(int row) {
        return column.getMap(row);
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        return column.getDecimal(row, precision, scale);
    }

    @Override
    public UTF8String getUTF8String(int row) {
        return column.getUTF8String(row);
    }

    @Override
    public byte[] getBinary(int row) {
        return column.getBinary(row);
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        return column.getChild(ordinal);
    }
}
