package org.apache.spark.sql.connector.expressions;

public class GeneralScalarExpression implements Expression {
    public native String name();

    public native Expression[] children();
}
