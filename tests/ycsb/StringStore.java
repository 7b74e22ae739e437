// YCSB's core on any server that has GET, SET, MGET and DEL of Redis: a record is one string of all its fields.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

public class StringStore extends DB {
  private static final String BETWEEN = "\u0001";
  private Jedis server;

  @Override
  public void init() {
    String[] ports = getProperties().getProperty("ports").split(",");
    // Threads take the servers in turn, as programs of several racks do.
    int port = Integer.parseInt(ports[(int) (Thread.currentThread().getId() % ports.length)]);
    server = new Jedis("127.0.0.1", port);
    server.connect();
  }

  @Override
  public void cleanup() {
    server.close();
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    String record = server.get(key);
    if (record == null) {
      return Status.NOT_FOUND;
    }
    fill(result, parse(record), fields);
    return Status.OK;
  }

  @Override
  public Status scan(String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    long first = Long.parseLong(start.substring("user".length()));
    List<String> keys = new ArrayList<>();
    for (long number = first; number < first + count; number++) {
      keys.add(String.format("user%012d", number));
    }
    for (String record : server.mget(keys.toArray(new String[0]))) {
      if (record != null) {
        HashMap<String, ByteIterator> row = new HashMap<>();
        fill(row, parse(record), fields);
        result.add(row);
      }
    }
    return result.isEmpty() ? Status.NOT_FOUND : Status.OK;
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    String record = server.get(key);
    if (record == null) {
      return Status.NOT_FOUND;
    }
    Map<String, String> all = parse(record);
    all.putAll(StringByteIterator.getStringMap(values));
    return write(key, all);
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    return write(key, StringByteIterator.getStringMap(values));
  }

  @Override
  public Status delete(String table, String key) {
    return server.del(key) == 0 ? Status.NOT_FOUND : Status.OK;
  }

  private Status write(String key, Map<String, String> fields) {
    List<String> words = new ArrayList<>();
    new TreeMap<>(fields).forEach((name, value) -> {
      words.add(name);
      words.add(value);
    });
    return server.set(key, String.join(BETWEEN, words)).equals("OK") ? Status.OK : Status.ERROR;
  }

  private static Map<String, String> parse(String record) {
    String[] words = record.split(BETWEEN, -1);
    Map<String, String> fields = new HashMap<>();
    for (int at = 0; at + 1 < words.length; at += 2) {
      fields.put(words[at], words[at + 1]);
    }
    return fields;
  }

  private static void fill(Map<String, ByteIterator> into, Map<String, String> from, Set<String> wanted) {
    from.forEach((name, value) -> {
      if (wanted == null || wanted.contains(name)) {
        into.put(name, new StringByteIterator(value));
      }
    });
  }
}
