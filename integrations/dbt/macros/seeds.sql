{#-
    The rows of a seed as literals. By the method `session` dbt-spark puts an empty cell of a text into
    the table as the word None, fails at a quote in a text, and rounds integers above 2**53.
-#}

{% macro spark__load_csv_rows(model, agate_table) %}
  {%- set given = model['config'].get('column_types', {}) -%}
  {%- set types = [] -%}
  {%- for name in agate_table.column_names -%}
    {%- do types.append(given.get(name, adapter.convert_type(agate_table, loop.index0))) -%}
  {%- endfor -%}
  {%- set statements = [] -%}
  {%- for rows in agate_table.rows | batch(get_batch_size()) -%}
    {%- set sql -%}
      insert into {{ this.render() }} values
      {% for row in rows -%}
        ({%- for value in row -%}
          {%- if value is none -%}
            {%- set literal = 'null' -%}
          {%- elif value is number and value is not boolean -%}
            {%- set literal = value -%}
          {%- else -%}
            {%- set literal = "'" ~ (value | string | replace("\\", "\\\\") | replace("'", "\\'")) ~ "'" -%}
          {%- endif -%}
          cast({{ literal }} as {{ types[loop.index0] }}) {%- if not loop.last -%}, {%- endif -%}
        {%- endfor -%}) {%- if not loop.last -%}, {%- endif %}
      {% endfor %}
    {%- endset -%}
    {%- do adapter.add_query(sql, abridge_sql_log=True) -%}
    {%- do statements.append(sql) -%}
  {%- endfor -%}
  {{ return(statements[0]) }}
{% endmacro %}
