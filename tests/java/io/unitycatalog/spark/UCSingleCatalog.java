package io.unitycatalog.spark;

import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Spark catalog whose tables are the commit tables of a node; for tests.
 *
 * <p>It has the name of Unity Catalog's connector, because Delta commits to a catalog only if a
 * session names exactly this class. All of it that matters is Delta's own: Delta stages, creates,
 * loads and commits managed tables by itself, through its client of the catalog's API. What it
 * leaves to the catalog below it is in {@link NodeNames}.
 */
public final class UCSingleCatalog extends DeltaCatalog {
  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    NodeNames names = new NodeNames();
    names.initialize(name, options);
    setDelegateCatalog(names);
    super.initialize(name, options);
  }
}
