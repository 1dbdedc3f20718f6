package logstore;

import java.io.Serializable;
import java.util.HashMap;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import scala.Tuple2;

/** The interpreter of workers, as the driver's configuration has it, and as executors get it. */
record Python(String executable, HashMap<String, String> environment, int startSeconds)
        implements Serializable {
    /** Spark's daemon forks the workers of one module; it reads no name without this prefix. */
    static final String WORKER = "pyspark_logstore_worker";

    static final String DAEMON = "logstore.spark.columnar_daemon";

    static Python ofSession() {
        SparkConf conf = SparkEnv.get().conf();
        HashMap<String, String> environment = new HashMap<>();
        for (Tuple2<String, String> variable : conf.getAllWithPrefix("spark.executorEnv.")) {
            environment.put(variable._1(), variable._2());
        }
        environment.put("SPARK_REUSE_WORKER", "1");
        String fallback = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
        return new Python(
            conf.get("spark.logstore.python", fallback),
            environment,
            Integer.parseInt(conf.get("spark.logstore.pythonStartSeconds", "60")));
    }
}
