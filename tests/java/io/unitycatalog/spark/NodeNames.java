package io.unitycatalog.spark;

import io.unitycatalog.client.ApiClient;
import io.unitycatalog.client.ApiClientBuilder;
import io.unitycatalog.client.ApiException;
import io.unitycatalog.client.api.SchemasApi;
import io.unitycatalog.client.api.TablesApi;
import io.unitycatalog.client.auth.TokenProvider;
import io.unitycatalog.client.delta.api.DeltaTablesApi;
import io.unitycatalog.client.model.CreateSchema;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Schemas, names and drops of a node's commit tables: what Delta does not ask for itself. */
public final class NodeNames implements TableCatalog, SupportsNamespaces {
  private static final int MISSING = 404;
  private static final int TAKEN = 409;

  private String catalog;
  private SchemasApi schemas;
  private TablesApi tables;
  private DeltaTablesApi deltaTables;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    Map<String, String> access = Map.of("type", "static", "token", options.get("token"));
    ApiClient client =
        ApiClientBuilder.create()
            .uri(options.get("uri"))
            .tokenProvider(TokenProvider.create(access))
            .build();
    catalog = name;
    schemas = new SchemasApi(client);
    tables = new TablesApi(client);
    deltaTables = new DeltaTablesApi(client);
  }

  @Override
  public String name() {
    return catalog;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {"default"};
  }

  @Override
  public String[][] listNamespaces() {
    try {
      return schemas.listSchemas(catalog, null, null).getSchemas().stream()
          .map(schema -> new String[] {schema.getName()})
          .toArray(String[][]::new);
    } catch (ApiException failure) {
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) {
      return listNamespaces();
    }
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    try {
      schemas.getSchema(catalog + "." + String.join(".", namespace));
      return new HashMap<>();
    } catch (ApiException failure) {
      if (failure.getCode() == MISSING) {
        throw new NoSuchNamespaceException(namespace);
      }
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    try {
      schemas.createSchema(new CreateSchema().name(namespace[0]).catalogName(catalog));
    } catch (ApiException failure) {
      if (failure.getCode() == TAKEN) {
        throw new NamespaceAlreadyExistsException(namespace);
      }
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException("schemas have no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    try {
      schemas.deleteSchema(catalog + "." + namespace[0], cascade);
      return true;
    } catch (ApiException failure) {
      if (failure.getCode() == MISSING) {
        return false;
      }
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    try {
      return tables.listTables(catalog, namespace[0], null, null).getTables().stream()
          .map(table -> Identifier.of(namespace, table.getName()))
          .toArray(Identifier[]::new);
    } catch (ApiException failure) {
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public boolean tableExists(Identifier table) {
    try {
      deltaTables.tableExists(catalog, table.namespace()[0], table.name());
      return true;
    } catch (ApiException failure) {
      if (failure.getCode() == MISSING) {
        return false;
      }
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    if (tableExists(table)) {
      throw new UnsupportedOperationException("Delta loads " + table + " by its own client");
    }
    throw new NoSuchTableException(table);
  }

  @Override
  public Table createTable(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    throw new UnsupportedOperationException("only managed Delta tables are commit tables");
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) {
    throw new UnsupportedOperationException("Delta changes " + table + " by a commit");
  }

  @Override
  public boolean dropTable(Identifier table) {
    try {
      deltaTables.deleteTable(catalog, table.namespace()[0], table.name());
      return true;
    } catch (ApiException failure) {
      if (failure.getCode() == MISSING) {
        return false;
      }
      throw new IllegalStateException(failure);
    }
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("commit tables keep their names");
  }
}
