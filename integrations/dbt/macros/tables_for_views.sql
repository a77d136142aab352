{#-
    The catalog of sparktxlog has tables and no views. What dbt makes as a view becomes a table of
    what the query returns when it runs: models that are views (dbt's default), and the relation in
    which a snapshot stages its changes.

    The project says that these macros come before those of dbt-spark (docs/dbt.md):

        dispatch:
          - macro_namespace: dbt
            search_order: [YOUR_PROJECT, sparktxlog_dbt, dbt_spark, dbt]
-#}

{% macro spark__create_view_as(relation, sql) -%}
  create or replace table {{ relation }}
  using delta
  {{ comment_clause() }}
  {%- if config.get('contract').enforced -%}
    {{ get_assert_columns_equivalent(sql) }}
  {%- endif %}
  as
    {{ sql }}
{%- endmacro %}


{#-
    Comments of columns (`persist_docs`): a view has them in its list of columns, which CREATE TABLE … AS
    does not take. dbt-spark gives them to other models after this step, and to views not at all.
-#}
{% macro spark__apply_grants(relation, grant_config, should_revoke=True) %}
  {%- if relation.is_view -%}
    {%- do persist_docs(relation, model, for_relation=false) -%}
  {%- endif -%}
  {{ return(dbt.default__apply_grants(relation, grant_config, should_revoke)) }}
{% endmacro %}


{#- A relation that dbt takes for a view is a table, too. -#}
{% macro spark__drop_relation(relation) -%}
  {% call statement('drop_relation', auto_begin=False) -%}
    drop table if exists {{ relation }}
  {%- endcall %}
{%- endmacro %}


{#- dbt would drop the table of the run before; it is replaced instead, so that readers always find one. -#}
{% macro spark__handle_existing_table(full_refresh, old_relation) %}{% endmacro %}
