package scala.collection.immutable;

public interface Map<K, V> {
    final class Map2<K, V> implements Map<K, V> {
        public Map2(K key1, V value1, K key2, V value2) {
        }
    }
}
