{# The two hooks of every command. The plugin does the work; `store_relation` is the one door that dbt-duckdb opens to a plugin. #}

{% macro lineage_begin() %}
  {% if execute and flags.WHICH in ('build', 'run', 'test') %}
    {% do adapter.store_relation('lineage', none, [], '', 'begin',
        {'selected': selected_resources, 'graph': graph, 'project_name': project_name}) %}
  {% endif %}
{% endmacro %}

{% macro lineage_publish(results) %}
  {% if execute and flags.WHICH == 'build' %}
    {% do adapter.store_relation('lineage', none, [], '', 'publish',
        {'results': results, 'graph': graph, 'project_name': project_name}) %}
  {% endif %}
{% endmacro %}
