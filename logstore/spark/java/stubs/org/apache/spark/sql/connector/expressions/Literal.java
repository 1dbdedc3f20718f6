package org.apache.spark.sql.connector.expressions;

import org.apache.spark.sql.types.DataType;

public interface Literal<T> extends Expression {
    T value();

    DataType dataType();
}
