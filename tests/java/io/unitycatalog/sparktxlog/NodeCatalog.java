package io.unitycatalog.sparktxlog;

import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Spark catalog whose tables are the commit tables of a node; for tests.
 *
 * <p>All of it that matters is Delta's own: Delta stages, creates, loads and commits managed tables
 * by itself, through its client of the catalog's API, if the catalog below it has a class name that
 * begins with {@code io.unitycatalog.}. What Delta leaves to that catalog is in {@link NodeNames}.
 */
public final class NodeCatalog extends DeltaCatalog {
  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    NodeNames names = new NodeNames();
    names.initialize(name, options);
    setDelegateCatalog(names);
    super.initialize(name, options);
  }
}
