{#-
    Incremental models whose query gets other columns (`on_schema_change`). dbt-spark drops no column of
    a Delta table: Delta does that where a table maps its columns by name.
-#}

{% macro spark__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
  {%- if execute and remove_columns -%}
    {%- set mode = {'name': ''} -%}
    {%- for key, value in run_query("show tblproperties " ~ relation.render()).rows if key == "delta.columnMapping.mode" -%}
      {%- do mode.update({'name': value}) -%}
    {%- endfor -%}
    {%- if mode.name != "name" -%}
      {%- do run_query("alter table " ~ relation.render() ~ " set tblproperties ('delta.columnMapping.mode' = 'name')") -%}
    {%- endif -%}
    {%- set dropped = remove_columns | map(attribute='quoted') | join(', ') -%}
    {%- do run_query("alter table " ~ relation.render() ~ " drop columns (" ~ dropped ~ ")") -%}
  {%- endif -%}
  {%- if execute and add_columns -%}
    {%- set added = [] -%}
    {%- for column in add_columns -%}
      {%- do added.append(column.quoted ~ " " ~ column.data_type) -%}
    {%- endfor -%}
    {%- do run_query("alter table " ~ relation.render() ~ " add columns (" ~ added | join(', ') ~ ")") -%}
  {%- endif -%}
{% endmacro %}
