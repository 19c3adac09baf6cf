{{ config(meta={'dagster': {'ref': {'name': 'delays_by_carrier'}}, 'description': 'Every flight of silver is counted for exactly one airline.'}) }}

select counted.flights, stored.flights as flights_in_silver
from (select coalesce(sum(flights), 0) as flights from {{ ref('delays_by_carrier') }}) as counted,
    (select count(*) as flights from {{ source('silver', 'flights') }}) as stored
where counted.flights <> stored.flights
