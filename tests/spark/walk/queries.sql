-- Questions of the table t, each after its name. Those that are `ordered` are compared row by row.

-- lateral_view
SELECT topic, offset, h.key, h.value FROM t LATERAL VIEW explode(headers) AS h;

-- exploded_with_place
SELECT offset, posexplode(headers) FROM t;

-- inlined
SELECT offset, inline(headers) FROM t;

-- inlined_outer
SELECT inline_outer(headers) FROM t WHERE topic = 'mixed';

-- lateral_view_outer
SELECT offset, h.value FROM t LATERAL VIEW OUTER explode(headers) AS h WHERE topic = 'mixed';

-- lateral_join
SELECT t.offset, u.n FROM t, LATERAL (SELECT size(t.headers) AS n) u;

-- count
SELECT count(*), count(key), count(value), count(headers), count(timestamp) FROM t;

-- count_alone
SELECT count(*) FROM t;

-- extremes
SELECT min(offset), max(offset), min(timestamp), max(timestamp) FROM t;

-- extremes_by_place
SELECT topic, partition, min(offset), max(offset), min(timestamp), max(timestamp), count(*)
FROM t
GROUP BY topic, partition;

-- extremes_filtered
SELECT partition, max(offset), min(timestamp)
FROM t
WHERE offset > 17 AND topic = 'mixed'
GROUP BY partition;

-- extremes_of_content
SELECT min(key), max(key), min(value), max(length(value)) FROM t;

-- extremes_by_time
SELECT max(timestamp), count(*) FROM t WHERE timestamp < timestamp_millis(1700000060000);

-- empty_extremes
SELECT min(offset), max(timestamp), count(*) FROM t WHERE topic = 'nothing';

-- grouped_by_constant
SELECT topic, count(*) FROM t GROUP BY topic HAVING count(*) > 100;

-- grouping_sets
SELECT topic, partition, compression, count(*), sum(offset)
FROM t
GROUP BY CUBE (topic, partition, compression);

-- rollup
SELECT topic, leaderEpoch, count(DISTINCT key), max(value)
FROM t
GROUP BY ROLLUP (topic, leaderEpoch);

-- distinct
SELECT DISTINCT key, length(value) FROM t;

-- distinct_counts
SELECT topic, count(DISTINCT key), count(DISTINCT value), count(DISTINCT headers)
FROM t
GROUP BY topic;

-- collected
SELECT topic, partition, sort_array(collect_set(key)), sort_array(collect_list(length(value)))
FROM t
WHERE topic <> 'big'
GROUP BY topic, partition;

-- filtered_aggregates
SELECT topic, count(*) FILTER (WHERE key IS NULL), sum(offset) FILTER (WHERE offset % 2 = 0)
FROM t
GROUP BY topic;

-- pivot
SELECT *
FROM (SELECT topic, compression, offset
FROM t)
PIVOT (count(offset) FOR compression IN ('none', 'gzip', 'lz4'));

-- self_join
SELECT a.topic, a.offset, b.value
FROM t a
JOIN t b ON a.topic = b.topic AND a.partition = b.partition AND a.offset = b.offset + 1;

-- outer_join
SELECT a.topic, a.offset, b.key, b.headers
FROM t a
LEFT JOIN (SELECT *
FROM t
WHERE topic LIKE 'v%') b ON a.topic = b.topic AND a.offset = b.offset + 7;

-- full_join
SELECT a.offset, a.value, b.offset, b.value
FROM (SELECT *
FROM t
WHERE topic = 'v2-gzip') a
FULL JOIN (SELECT *
FROM t
WHERE topic = 'v2-lz4') b ON a.offset = b.offset - 10;

-- semi_join
SELECT *
FROM t
WHERE topic = 'mixed' AND key IN (SELECT key
FROM t
WHERE partition = 1 AND topic = 'mixed');

-- anti_join
SELECT topic, offset, value
FROM t
WHERE topic = 'mixed' AND NOT EXISTS (SELECT 1
FROM t u
WHERE u.topic = 'mixed' AND u.partition = 2 AND u.key = t.key);

-- null_aware_anti_join
SELECT offset
FROM t
WHERE topic = 'mixed' AND key NOT IN (SELECT key
FROM t
WHERE topic = 'v1-none');

-- cross_join
SELECT a.offset, b.key
FROM (SELECT *
FROM t
WHERE topic = 'large') a
CROSS JOIN (SELECT *
FROM t
WHERE topic = 'v2-kraft-control' OR topic = 'large') b;

-- union_all
SELECT key, offset
FROM t
WHERE topic = 'mixed'
UNION ALL SELECT value, -offset
FROM t
WHERE topic = 'large';

-- union
SELECT key, partition FROM t UNION SELECT value, partition FROM t WHERE topic = 'mixed';

-- intersect
SELECT key
FROM t
WHERE topic = 'mixed' AND partition = 0
INTERSECT SELECT key
FROM t
WHERE topic = 'mixed' AND partition = 1;

-- except
SELECT key, value
FROM t
WHERE topic = 'v2-none'
EXCEPT ALL SELECT key, value
FROM t
WHERE topic = 'v2-gzip' AND offset % 2 = 0;

-- windows
SELECT topic, offset, row_number() OVER w, lag(value, 1) OVER w, lead(headers, 2) OVER w,
  first_value(key) OVER w, sum(offset) OVER (PARTITION BY topic
ORDER BY partition, offset ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)
FROM t
WINDOW w AS (PARTITION BY topic, partition
ORDER BY offset);

-- window_over_large
SELECT offset, lag(value, 2) OVER (ORDER BY offset), last_value(value) OVER (ORDER BY offset ROWS
  BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
FROM t
WHERE topic = 'large';

-- ranks_by_group
SELECT *
FROM (SELECT topic, offset, value, rank() OVER (PARTITION BY topic, partition
ORDER BY offset DESC) AS r
FROM t)
WHERE r <= 3;

-- scalar_subquery
SELECT offset, value, (SELECT max(offset)
FROM t
WHERE topic = 'mixed')
FROM t
WHERE offset > (SELECT avg(offset)
FROM t
WHERE topic = 'big') AND topic = 'big';

-- correlated_subquery
SELECT topic, partition, offset
FROM t
WHERE offset = (SELECT max(offset)
FROM t u
WHERE u.topic = t.topic AND u.partition = t.partition);

-- reused_exchange
WITH c AS (SELECT topic, partition, count(*) AS n, max(value) AS v
FROM t
GROUP BY topic, partition) SELECT a.topic, a.n, b.v
FROM c a
JOIN c b ON a.topic = b.topic AND a.partition = b.partition;

-- recursive_cte
WITH RECURSIVE r(n) AS (SELECT 1
UNION ALL SELECT n + 1
FROM r
WHERE n < 4) SELECT r.n, t.offset, t.value
FROM r
JOIN t ON t.offset = r.n * 1000 AND t.topic = 'big';

-- pruned_by_join
SELECT t.offset, t.value
FROM t
JOIN (SELECT DISTINCT topic
FROM t
WHERE topic LIKE 'v2-%' AND key IS NULL) d ON t.topic = d.topic;

-- union_of_unlike_columns
SELECT key AS a FROM t WHERE topic = 'mixed' UNION ALL SELECT headers[0].value FROM t;

-- case_of_subqueries
SELECT CASE WHEN EXISTS (SELECT 1 FROM t WHERE offset = 5) THEN 'yes' ELSE 'no' END;

-- stacked
SELECT offset, k, v
FROM t
LATERAL VIEW stack(2, 'key', key, 'value', value) AS k, v
WHERE topic = 'mixed';

-- limited_subquery
SELECT count(*) FROM (SELECT * FROM t LIMIT 33);

-- limited_column_subquery
SELECT count(value) FROM (SELECT value FROM t WHERE topic = 'big' LIMIT 40001);

-- union_of_limits
SELECT count(*), count(DISTINCT topic)
FROM ((SELECT topic
FROM t
WHERE topic = 'big' LIMIT 5)
UNION ALL (SELECT topic
FROM t
WHERE topic = 'large' LIMIT 5));

-- offset_clause
SELECT count(*) FROM (SELECT value FROM t LIMIT 100 OFFSET 50);

-- sampled
SELECT count(*) FROM t TABLESAMPLE (100 PERCENT);

-- ordered order_limit
SELECT offset, value FROM t WHERE topic = 'big' ORDER BY offset DESC LIMIT 10;

-- ordered order_limit_up
SELECT * FROM t WHERE topic = 'mixed' ORDER BY offset, partition LIMIT 20;

-- ordered order_limit_offset
SELECT topic, partition, offset FROM t ORDER BY offset DESC, topic, partition LIMIT 10 OFFSET 5;

-- ordered order_by_time
SELECT timestamp, offset FROM t WHERE topic = 'big' ORDER BY timestamp DESC, offset LIMIT 12;

-- ordered order_by_content
SELECT key, value, topic, partition, offset
FROM t
ORDER BY value DESC NULLS LAST, key, topic, partition, offset LIMIT 30;

-- ordered order_by_header
SELECT topic, partition, offset, headers
FROM t
ORDER BY headers[0].value DESC, topic, partition, offset LIMIT 25;

-- ordered order_all
SELECT topic, partition, offset, key, value
FROM t
WHERE topic <> 'big'
ORDER BY topic, partition, offset;

-- ordered order_by_aggregate
SELECT topic, sum(offset) AS s FROM t GROUP BY topic ORDER BY s DESC, topic LIMIT 4;

-- ordered order_filtered_by_time
SELECT offset
FROM t
WHERE topic = 'big' AND timestamp >= timestamp_millis(1700000077777)
ORDER BY offset LIMIT 3;
