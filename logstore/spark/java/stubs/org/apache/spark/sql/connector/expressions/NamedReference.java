package org.apache.spark.sql.connector.expressions;

public interface NamedReference extends Expression {
    String[] fieldNames();
}
