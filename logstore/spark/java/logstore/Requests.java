package logstore;

import java.util.Map;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.StructType;

/** Questions of the driver. What Python objects to is an {@code IllegalArgumentException}. */
final class Requests {
    private final Python python;

    Requests(Python python) {
        this.python = python;
    }

    StructType schema(Map<String, String> options) {
        return StructType.fromDDL(ask(new Request("schema").options(options), Worker::readText));
    }

    /** Which filters hold for every row that Python gives, so that Spark need not look again. */
    boolean[] exactFilters(Map<String, String> options, StructType schema, Predicate[] filters) {
        Request request =
            new Request("filters").options(options).text(schema.json()).expressions(filters);
        return ask(request, worker -> {
            boolean[] exact = new boolean[filters.length];
            for (int i = 0; i < exact.length; i++) {
                exact[i] = worker.readInt() != 0;
            }
            return exact;
        });
    }

    LogstoreScan.Plan plan(LogstoreScan.Query query) {
        Request request = new Request("plan")
            .options(query.options())
            .text(query.schema().json())
            .text(query.required().json())
            .texts(query.aggregates().toArray(new String[0]))
            .number(query.limit())
            .text(query.order().name())
            .expressions(query.predicates())
            .number(Native.isWanted() ? 1 : 0);
        return ask(request, worker ->
            new LogstoreScan.Plan(worker.readBytes(), LogstoreScan.Task.readAll(worker)));
    }

    interface Content<T> {
        T of(Worker worker);
    }

    private <T> T ask(Request request, Content<T> content) {
        Worker worker = Worker.start(python);
        try {
            worker.send(request);
            worker.answer();
            T found = content.of(worker);
            worker.release();
            return found;
        } catch (LogstoreException error) {
            throw new IllegalArgumentException(error.sentence(), error.getCause());
        } finally {
            worker.destroyUnlessReleased();
        }
    }
}
