package org.apache.spark.sql.connector.expressions.filter;

import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;

public class Predicate extends GeneralScalarExpression {}
