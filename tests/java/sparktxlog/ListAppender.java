package sparktxlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.storage.commit.Commit;
import io.delta.storage.commit.CommitFailedException;
import io.delta.storage.commit.TableIdentifier;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaTokenBasedRestClient;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Sessions at several sites read lists and append to them, through Delta's own Java client of the
 * catalog, under Delta's serializable isolation: who lost looks at the commits in between, and
 * fails if they added to what it had read, else it asks for the next version.
 *
 * <p>A list is a key of a table; a data file has one element of one list. One JSON object comes in;
 * one goes out for each transaction, and in the end one for each session with all that it has read.
 */
public final class ListAppender {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long BEGIN_MS = 1_700_000_000_000L;

  private final JsonNode asked;

  /** Commit file at a site → what it added: the sessions of a site read a published file once. */
  private final Map<String, List<Row>> published = new ConcurrentHashMap<>();

  private final AtomicInteger elements = new AtomicInteger();
  private final AtomicInteger committed = new AtomicInteger();

  private final long end;

  private ListAppender(JsonNode asked) {
    this.asked = asked;
    end = System.nanoTime() + (long) (1e9 * asked.get("seconds").asDouble());
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    new ListAppender(JSON.readTree(in.readLine())).run();
  }

  private void run() throws InterruptedException {
    List<Thread> threads = new ArrayList<>();
    for (JsonNode site : asked.get("sites")) {
      for (int number = 0; number < asked.get("sessions").asInt(); number++) {
        Session session = new Session(site, site.get("name").asText() + number);
        threads.add(new Thread(session::work));
      }
    }
    for (Thread thread : threads) {
      thread.start();
    }
    for (Thread thread : threads) {
      thread.join();
    }
    System.out.flush();
  }

  private static synchronized void tell(ObjectNode line) {
    System.out.println(line);
  }

  /** An element that a version added to a list. */
  private record Row(String key, Integer element) {}

  /** Where a site has its tables; names are relative to all of them. */
  private interface Place {
    URI uri(String name);

    void write(String name, byte[] content) throws IOException;

    String read(String name) throws IOException;
  }

  /**
   * Opens the place of a site.
   *
   * @param root a directory, or a URL of a bucket
   * @param hadoop settings of Hadoop's file systems
   */
  private static Place place(String root, JsonNode hadoop) {
    if (!root.contains("://")) {
      return new DiskPlace(java.nio.file.Path.of(root));
    }
    Configuration settings = new Configuration();
    hadoop.fields().forEachRemaining(one -> settings.set(one.getKey(), one.getValue().asText()));
    try {
      return new BucketPlace(root, FileSystem.get(URI.create(root), settings));
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  private record DiskPlace(java.nio.file.Path root) implements Place {
    @Override
    public URI uri(String name) {
      return root.resolve(name).toUri();
    }

    @Override
    public void write(String name, byte[] content) throws IOException {
      Files.write(root.resolve(name), content);
    }

    @Override
    public String read(String name) throws IOException {
      return Files.readString(root.resolve(name));
    }
  }

  private record BucketPlace(String root, FileSystem files) implements Place {
    @Override
    public URI uri(String name) {
      return URI.create(root + "/" + name);
    }

    @Override
    public void write(String name, byte[] content) throws IOException {
      try (OutputStream out = files.create(new Path(uri(name)))) {
        out.write(content);
      }
    }

    @Override
    public String read(String name) throws IOException {
      try (InputStream in = files.open(new Path(uri(name)))) {
        return new String(in.readAllBytes(), StandardCharsets.UTF_8);
      }
    }
  }

  /** What a session has read of a table. */
  private static final class Copy {
    long version;
    final Map<String, List<Integer>> lists = new TreeMap<>();
  }

  /** One client at one site, one transaction after the other. */
  private final class Session {
    private final String name;
    private final Place place;
    private final Random random;
    private final UCDeltaTokenBasedRestClient client;
    private final Map<String, Copy> copies = new HashMap<>();

    Session(JsonNode site, String name) {
      this.name = name;
      place = place(site.get("root").asText(), asked.get("hadoop"));
      random = new Random(asked.get("seed").asLong() * 31 + name.hashCode());
      Map<String, String> settings = new LinkedHashMap<>();
      settings.put("uri", site.get("uri").asText());
      settings.put("token", "any");
      client = new UCDeltaTokenBasedRestClient(settings, Configuration::new);
    }

    void work() {
      try {
        List<JsonNode> tables = new ArrayList<>();
        asked.get("tables").forEach(tables::add);
        while (committed.get() < asked.get("commits").asInt() && System.nanoTime() < end) {
          transact(tables.get(random.nextInt(tables.size())));
        }
        for (JsonNode table : tables) {
          Copy copy = copies.getOrDefault(table.get("id").asText(), new Copy());
          ObjectNode line = JSON.createObjectNode();
          line.put("session", name).put("table", table.get("name").asText());
          line.set("lists", JSON.valueToTree(copy.lists));
          tell(line);
        }
      } catch (Exception failure) {
        tell(JSON.createObjectNode().put("session", name).put("failed", failure.toString()));
      }
    }

    private void transact(JsonNode table) throws Exception {
      ObjectNode line = JSON.createObjectNode();
      line.put("session", name).put("table", table.get("name").asText());
      line.put("began", System.nanoTime() / 1e9);
      Copy copy = copies.computeIfAbsent(table.get("id").asText(), id -> new Copy());
      follow(table, copy, latest(table));
      line.put("read_version", copy.version);
      Set<String> read = drawn(random.nextInt(10) < 7 ? 2 : 0);
      ObjectNode lengths = line.putObject("reads");
      for (String key : read) {
        lengths.put(key, copy.lists.getOrDefault(key, Collections.emptyList()).size());
      }
      Set<String> written = drawn(read.isEmpty() ? 1 : random.nextInt(3));
      String told = written.isEmpty() ? "read" : append(table, copy, read, written, line);
      line.put("told", told).put("ended", System.nanoTime() / 1e9);
      tell(line);
    }

    private Set<String> drawn(int most) {
      Set<String> keys = new TreeSet<>();
      for (int number = 0; number < most; number++) {
        keys.add("k" + random.nextInt(asked.get("keys").asInt()));
      }
      return keys;
    }

    private String append(
        JsonNode table, Copy copy, Set<String> read, Set<String> written, ObjectNode line)
        throws Exception {
      ArrayNode adds = JSON.createArrayNode();
      ObjectNode appends = line.putObject("appends");
      for (String key : written) {
        int element = elements.incrementAndGet();
        appends.put(key, element);
        byte[] content = (key + " " + element).getBytes(StandardCharsets.UTF_8);
        String path = "part-" + UUID.randomUUID() + ".parquet";
        place.write(name(table, path), content);
        ObjectNode add = adds.addObject().putObject("add");
        add.put("path", path).put("size", content.length).putObject("partitionValues");
      }
      while (true) {
        long version = copy.version + 1;
        if (isCommitted(table, version, adds)) {
          committed.incrementAndGet();
          line.put("version", version);
          return "ordered";
        }
        // It is read as part of the next transaction; what this one has read is noted already.
        Set<String> added = follow(table, copy, latest(table));
        if (copy.version < version) {
          throw new IllegalStateException(version + " is lost, and has no winner at " + name);
        }
        if (!Collections.disjoint(added, read)) {
          return "rejected";
        }
      }
    }

    private boolean isCommitted(JsonNode table, long version, ArrayNode adds) throws Exception {
      ObjectNode info = JSON.createObjectNode();
      info.putObject("commitInfo")
          .put("inCommitTimestamp", BEGIN_MS + version)
          .put("operation", "WRITE")
          .put("txnId", UUID.randomUUID().toString());
      StringBuilder lines = new StringBuilder(info + "\n");
      adds.forEach(add -> lines.append(add).append('\n'));
      byte[] content = lines.toString().getBytes(StandardCharsets.UTF_8);
      String staged =
          name(
              table,
              String.format(
                  "_delta_log/_staged_commits/%020d.%s.json", version, UUID.randomUUID()));
      place.write(staged, content);
      FileStatus file =
          new FileStatus(
              content.length,
              false,
              0,
              0,
              BEGIN_MS + version,
              new Path(place.uri(staged)));
      while (true) {
        try {
          client.commit(
              table.get("id").asText(),
              place.uri(table.get("id").asText()),
              identifier(table),
              Optional.of(new Commit(version, file, BEGIN_MS + version)),
              Optional.of(version - 1),
              Optional.empty(),
              Optional.empty(),
              Optional.empty(),
              Optional.empty(),
              new ArrayList<>(),
              Optional.empty());
          return true;
        } catch (CommitFailedException failure) {
          if (failure.getConflict()) {
            return false;
          }
          if (!failure.getRetryable()) {
            throw failure;
          }
        } catch (IOException failure) {
          // Nobody knows: to ask again with the same file is to repeat it.
        }
        Thread.sleep(100);
      }
    }

    private long latest(JsonNode table) throws Exception {
      while (true) {
        try {
          return client
              .getCommits(
                  table.get("id").asText(),
                  place.uri(table.get("id").asText()),
                  identifier(table),
                  Optional.empty(),
                  Optional.empty())
              .getLatestTableVersion();
        } catch (IOException failure) {
          Thread.sleep(100);
        }
      }
    }

    /** Reads what was added up to a version; returns the keys of that. */
    private Set<String> follow(JsonNode table, Copy copy, long version) throws Exception {
      Set<String> keys = new HashSet<>();
      for (; copy.version < version; copy.version++) {
        String commit =
            name(table, String.format("_delta_log/%020d.json", copy.version + 1));
        List<Row> rows = published.get(place.uri(commit).toString());
        if (rows == null) {
          published.put(place.uri(commit).toString(), rows = rows(table, commit));
        }
        for (Row row : rows) {
          copy.lists.computeIfAbsent(row.key(), key -> new ArrayList<>()).add(row.element());
          keys.add(row.key());
        }
      }
      return keys;
    }

    private List<Row> rows(JsonNode table, String commit) throws Exception {
      List<Row> rows = new ArrayList<>();
      for (String line : place.read(commit).split("\n")) {
        JsonNode add = JSON.readTree(line).get("add");
        if (add != null) {
          String[] row = place.read(name(table, add.get("path").asText())).split(" ");
          rows.add(new Row(row[0].intern(), Integer.valueOf(row[1])));
        }
      }
      return rows;
    }

    private static String name(JsonNode table, String path) {
      return table.get("id").asText() + "/" + path;
    }

    private TableIdentifier identifier(JsonNode table) {
      return new TableIdentifier(new String[] {"tx", "default"}, table.get("name").asText());
    }
  }
}
