{#-
    What a schema holds. dbt asks that before it makes the schema, and after it dropped it: the catalog
    answers that there is none, and dbt-spark knows other words for that only. And the catalog shows
    names as they were given, while dbt-spark looks for them in small letters.
-#}

{% macro spark__list_relations_without_caching(relation) %}
  {%- set found = [] -%}
  {%- if run_query("show schemas like '" ~ relation.schema ~ "'").rows -%}
    {%- call statement('list_relations_without_caching', fetch_result=True) -%}
      show table extended in {{ relation.schema }} like '*'
    {%- endcall -%}
    {%- for schema, name, temporary, information in load_result('list_relations_without_caching').table.rows -%}
      {%- do found.append((schema | lower, name | lower, temporary, information)) -%}
    {%- endfor -%}
  {%- endif -%}
  {% do return(found) %}
{% endmacro %}


{#- With `--empty` a reference is a query of no rows, which DESCRIBE does not take: the table is described. -#}
{% macro spark__get_columns_in_relation_raw(relation) %}
  {%- call statement('get_columns_in_relation_raw', fetch_result=True) -%}
    describe extended {{ relation.render() }}
  {%- endcall -%}
  {% do return(load_result('get_columns_in_relation_raw').table) %}
{% endmacro %}
