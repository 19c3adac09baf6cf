select
    cast(hour as date) as day,
    cast(sum(events) as bigint) as events,
    cast(coalesce(sum(events) filter (where event_type = 'purchase'), 0) as bigint) as purchases,
    cast(sum(late_events) as bigint) as late_events
from {{ ref('traffic_hourly') }}
group by 1
