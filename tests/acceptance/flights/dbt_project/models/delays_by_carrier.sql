select
    carrier,
    count(*) as flights,
    count(dep_time) as with_departure,
    count(arr_delay) as with_arrival_delay,
    cast(coalesce(sum(arr_delay), 0) as bigint) as arrival_delay_minutes,
    cast(sum(arr_delay) as double) / count(arr_delay) as mean_arrival_delay_minutes
from {{ source('silver', 'flights') }}
group by carrier
