package org.apache.spark;

import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.PythonWorkerHandle;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;

public class SparkEnv {
    public static native SparkEnv get();

    public native SparkConf conf();

    public native Tuple2<PythonWorker, Option<PythonWorkerHandle>> createPythonWorker(
        String pythonExec,
        String workerModule,
        String daemonModule,
        Map<String, String> envVars,
        boolean useDaemon);

    public native void destroyPythonWorker(
        String pythonExec,
        String workerModule,
        String daemonModule,
        Map<String, String> envVars,
        PythonWorker worker);

    public native void releasePythonWorker(
        String pythonExec,
        String workerModule,
        String daemonModule,
        Map<String, String> envVars,
        PythonWorker worker);
}
