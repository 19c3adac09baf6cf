{{ config(meta={'dagster': {'ref': {'name': 'traffic_hourly'}}, 'description': 'Every click of silver is counted in exactly one hour.'}) }}

select counted.clicks, stored.clicks as clicks_in_silver
from (select coalesce(sum(events), 0) as clicks from {{ ref('traffic_hourly') }}) as counted,
    (select count(*) as clicks from {{ source('silver', 'clicks') }}) as stored
where counted.clicks <> stored.clicks
