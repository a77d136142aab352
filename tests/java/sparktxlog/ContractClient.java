package sparktxlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.unitycatalog.UCCatalogManagedClient;
import io.delta.kernel.unitycatalog.UCTableIdentifier;
import io.delta.storage.commit.Commit;
import io.delta.storage.commit.CommitFailedException;
import io.delta.storage.commit.GetCommitsResponse;
import io.delta.storage.commit.TableIdentifier;
import io.delta.storage.commit.actions.AbstractMetadata;
import io.delta.storage.commit.actions.AbstractProtocol;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaModels;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaTokenBasedRestClient;
import io.unitycatalog.client.ApiClient;
import io.unitycatalog.client.ApiClientBuilder;
import io.unitycatalog.client.auth.TokenProvider;
import io.unitycatalog.client.delta.api.DeltaTablesApi;
import io.unitycatalog.client.delta.model.DeltaRenameTableRequest;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;

/**
 * Lets a test drive Delta's own Java clients of the catalog's API: one JSON object a line comes in,
 * with the key {@code do}, and one goes out. Arguments: address of the node, token.
 */
public final class ContractClient {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final UCDeltaTokenBasedRestClient client;
  /** Unity Catalog's own client, for what Delta does not ask for. */
  private final DeltaTablesApi tables;

  private ContractClient(String uri, String token) {
    Map<String, String> settings = new LinkedHashMap<>();
    settings.put("uri", uri);
    settings.put("token", token);
    client = new UCDeltaTokenBasedRestClient(settings, Configuration::new);
    ApiClient plain =
        ApiClientBuilder.create()
            .uri(uri)
            .tokenProvider(TokenProvider.create(Map.of("type", "static", "token", token)))
            .build();
    tables = new DeltaTablesApi(plain);
  }

  public static void main(String[] arguments) throws Exception {
    ContractClient contract = new ContractClient(arguments[0], arguments[1]);
    BufferedReader asked =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = asked.readLine(); line != null; line = asked.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        contract.act(JSON.readTree(line), answer);
      } catch (Exception failure) {
        answer.put("failed", failure.getClass().getSimpleName());
        answer.put("message", String.valueOf(failure.getMessage()));
        if (failure instanceof CommitFailedException) {
          answer.put("retryable", ((CommitFailedException) failure).getRetryable());
          answer.put("conflict", ((CommitFailedException) failure).getConflict());
        }
      }
      System.out.println(JSON.writeValueAsString(answer));
      System.out.flush();
    }
  }

  private void act(JsonNode asked, ObjectNode answer) throws Exception {
    TableIdentifier table = new TableIdentifier(new String[] {"tx", "default"}, text(asked, "name"));
    switch (text(asked, "do")) {
      case "stage":
        UCDeltaModels.StagingTableInfo staged = client.createStagingTable(table);
        answer.put("id", staged.getTableId().toString());
        answer.put("location", staged.getLocation());
        answer.set("properties", JSON.valueToTree(staged.getRequiredProperties()));
        answer.set("features", JSON.valueToTree(staged.getRequiredProtocol().getWriterFeatures()));
        break;
      case "create":
        show(answer, create(asked, table));
        break;
      case "load":
        show(answer, client.loadTable(table));
        break;
      case "commit":
        commit(asked, table);
        break;
      case "commits":
        GetCommitsResponse found =
            client.getCommits(
                text(asked, "id"), uri(asked), table, Optional.empty(), Optional.empty());
        answer.put("latest", found.getLatestTableVersion());
        answer.put("unpublished", found.getCommits().size());
        break;
      case "metrics":
        client.reportMetrics(
            text(asked, "id"),
            table,
            new UCDeltaModels.CommitReport(
                1, 0, 4, 0, Optional.of(1L), Optional.empty(), Optional.empty(), Optional.empty()));
        break;
      case "rename":
        DeltaRenameTableRequest wanted = new DeltaRenameTableRequest().newName(text(asked, "to"));
        tables.renameTable("tx", "default", table.getName(), wanted);
        break;
      case "snapshot":
        answer.put("version", snapshotVersion(asked));
        break;
      default:
        throw new IllegalArgumentException(asked.toString());
    }
  }

  private UCDeltaModels.TableInfo create(JsonNode asked, TableIdentifier table) throws Exception {
    JsonNode metadata = action(asked, "metaData");
    JsonNode protocol = action(asked, "protocol");
    return client.createTable(
        uri(asked),
        table,
        UCDeltaModels.TableType.MANAGED,
        new Metadata(metadata),
        new Protocol(protocol),
        new ArrayList<>(),
        action(asked, "commitInfo").get("inCommitTimestamp").asLong(),
        Optional.empty());
  }

  private void commit(JsonNode asked, TableIdentifier table) throws Exception {
    JsonNode given = asked.get("commit");
    org.apache.hadoop.fs.Path path =
        new org.apache.hadoop.fs.Path(
            text(asked, "location") + "/_delta_log/_staged_commits/" + text(given, "file-name"));
    FileStatus file =
        new FileStatus(
            given.get("file-size").asLong(),
            false,
            0,
            0,
            given.get("file-modification-timestamp").asLong(),
            path);
    Commit commit =
        new Commit(given.get("version").asLong(), file, given.get("timestamp").asLong());
    client.commit(
        text(asked, "id"),
        uri(asked),
        table,
        Optional.of(commit),
        Optional.of(given.get("version").asLong() - 1),
        Optional.empty(),
        Optional.empty(),
        Optional.empty(),
        Optional.empty(),
        new ArrayList<>(),
        Optional.empty());
  }

  private long snapshotVersion(JsonNode asked) {
    return new UCCatalogManagedClient(client)
        .loadSnapshot(
            DefaultEngine.create(new Configuration()),
            text(asked, "id"),
            text(asked, "location"),
            new UCTableIdentifier("tx", "default", text(asked, "name")),
            Optional.empty(),
            Optional.empty())
        .getVersion();
  }

  private static void show(ObjectNode answer, UCDeltaModels.TableInfo table) {
    answer.put("id", table.getTableId().toString());
    answer.put("location", table.getLocation());
    answer.put("schema", table.getMetadata().getSchemaString());
    answer.set("properties", JSON.valueToTree(table.getMetadata().getConfiguration()));
  }

  /** Returns an action of version 0, as the test wrote it. */
  private static JsonNode action(JsonNode asked, String name) throws Exception {
    Path first =
        Path.of(uri(asked)).resolve("_delta_log").resolve(String.format("%020d.json", 0));
    for (String line : Files.readAllLines(first)) {
      JsonNode found = JSON.readTree(line).get(name);
      if (found != null) {
        return found;
      }
    }
    throw new IllegalStateException(name + " is missing in " + first);
  }

  private static URI uri(JsonNode asked) {
    return URI.create(text(asked, "location").replaceFirst("^file:/*", "file:///"));
  }

  private static String text(JsonNode from, String key) {
    return from.path(key).asText();
  }

  private static List<String> texts(JsonNode from) {
    List<String> found = new ArrayList<>();
    from.forEach(one -> found.add(one.asText()));
    return found;
  }

  /** The metadata of version 0. */
  private static final class Metadata implements AbstractMetadata {
    private final JsonNode action;

    Metadata(JsonNode action) {
      this.action = action;
    }

    @Override
    public String getId() {
      return text(action, "id");
    }

    @Override
    public String getName() {
      return null;
    }

    @Override
    public String getDescription() {
      return null;
    }

    @Override
    public String getProvider() {
      return "parquet";
    }

    @Override
    public Map<String, String> getFormatOptions() {
      return Map.of();
    }

    @Override
    public String getSchemaString() {
      return text(action, "schemaString");
    }

    @Override
    public List<String> getPartitionColumns() {
      return texts(action.get("partitionColumns"));
    }

    @Override
    public Map<String, String> getConfiguration() {
      Map<String, String> found = new LinkedHashMap<>();
      action
          .get("configuration")
          .fields()
          .forEachRemaining(one -> found.put(one.getKey(), one.getValue().asText()));
      return found;
    }

    @Override
    public Long getCreatedTime() {
      return action.get("createdTime").asLong();
    }
  }

  /** The protocol of version 0. */
  private static final class Protocol implements AbstractProtocol {
    private final JsonNode action;

    Protocol(JsonNode action) {
      this.action = action;
    }

    @Override
    public int getMinReaderVersion() {
      return action.get("minReaderVersion").asInt();
    }

    @Override
    public int getMinWriterVersion() {
      return action.get("minWriterVersion").asInt();
    }

    @Override
    public Set<String> getReaderFeatures() {
      return new LinkedHashSet<>(texts(action.get("readerFeatures")));
    }

    @Override
    public Set<String> getWriterFeatures() {
      return new LinkedHashSet<>(texts(action.get("writerFeatures")));
    }
  }
}
