package org.apache.spark.sql.connector.expressions;

public interface Expression {
    Expression[] children();
}
